"""What report and history say about the accuracy of engines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from buildsys.report.formatting import NOTHING, percent
from buildsys.report.report_types import Table
from buildsys.report.result_files import Result
from buildsys.stages.evaluate.result import EvaluateResult
from buildsys.stages.predict.report import metric_text

_COLUMNS = ("engine", "metric", "original>", "engine>", "loss>", "95 % interval>", "allowed>")
_FIGURES = ("value", "loss", "low", "high")


def key_figure(result: EvaluateResult) -> str:
    """State the metric with the interval of its loss."""
    text = metric_text(result["value"], is_share=result["is_share"])
    interval = f"{percent(result['low'])} to {percent(result['high'])}"
    return f"{result['title']} {text}, loss {percent(result['loss'])} ({interval})"


def table(results: Iterable[Result[EvaluateResult]]) -> Table:
    """List the metric of all engines with the interval of its loss."""
    rows = (_cells(result) for result in results if "loss" in result.content)
    return Table("Accuracy on data", _COLUMNS, tuple(rows))


def _cells(result: Result[EvaluateResult]) -> tuple[str, ...]:
    content = result.content
    original, value = (
        metric_text(content[side], is_share=content["is_share"]) for side in ("original", "value")
    )
    return (
        result.variant,
        f"{content['title']}, {content['samples']:,} samples",
        original,
        value,
        percent(content["loss"]),
        f"{percent(content['low'])} to {percent(content['high'])}",
        percent(content["drop"]) if "drop" in content else NOTHING,
    )


def history_figures(result: EvaluateResult) -> dict[str, Any]:
    """Collect the metric and the interval of its loss."""
    figures: dict[str, Any] = dict(result)
    return {name: figures[name] for name in _FIGURES if name in figures}
