"""What report and history say about the accuracy of engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from buildsys.report.formatting import NOTHING, count, metric, percent
from buildsys.report.report_types import Table
from buildsys.report.result_files import Result
from buildsys.stages.evaluate.result import EvaluateResult

Results = Iterable[Result[EvaluateResult]]
_COLUMNS = ("engine", "metric", "original>", "engine>", "loss>", "95 % interval>", "allowed>")
_CHANGED = ("engine", "sample", "label", "original", "predicted")
_SAMPLE = ("sample", "label", "original", "engine")  # fields of a flip
_FIGURES = ("value", "loss", "low", "high")
_COMPLETE = {"title", "is_share", "samples", "original", *_FIGURES}
_MOST_CLASSES = 40


def key_figure(result: EvaluateResult) -> str:
    """State the metric with the interval of its loss."""
    text = metric(result["value"], is_share=result["is_share"])
    interval = f"{percent(result['low'])} to {percent(result['high'])}"
    return f"{result['title']} {text}, loss {percent(result['loss'])} ({interval})"


def table(results: Results) -> Table:
    """List the metric of all engines with the interval of its loss."""
    rows = (_cells(result) for result in results if result.content.keys() >= _COMPLETE)
    return Table("Accuracy on data", _COLUMNS, tuple(rows))


def details(results: Sequence[Result[EvaluateResult]]) -> Iterator[Table]:
    """Yield the samples that change, and the metric by class."""
    rows = tuple(
        (result.variant, *(str(flip.get(field, "")) for field in _SAMPLE))
        for result in results
        for flip in result.content.get("flips", [])
    )
    yield Table("Changed predictions", _CHANGED, rows, images=tuple(row[1] for row in rows))
    yield _class_table([result for result in results if result.content.get("classes")])


def _class_table(results: Sequence[Result[EvaluateResult]]) -> Table:
    """List the metric of each engine by class, the largest loss first."""
    rows: dict[str, list[str]] = {}
    losses: dict[str, float] = {}
    is_share = all(result.content.get("is_share", True) for result in results)
    for place, result in enumerate(results):
        for own in result.content.get("classes", []):
            name, before, after = own.get("name", ""), own.get("original"), own.get("engine")
            texts = [
                NOTHING if v is None else metric(v, is_share=is_share) for v in (before, after)
            ]
            unknown = [NOTHING] * len(results)
            row = rows.setdefault(name, [name, count(own.get("samples")), texts[0], *unknown])
            row[3 + place] = texts[1]
            losses[name] = max(losses.get(name, -1.0), (before or 0.0) - (after or 0.0))
    order = sorted(rows, key=lambda name: -losses[name])
    more = len(order) - _MOST_CLASSES
    notes = (f"{more} more classes, which lose less, are in the results.",) if more > 0 else ()
    columns = ("class", "samples>", "original>", *(f"{result.variant}>" for result in results))
    largest = tuple(tuple(rows[name]) for name in order[:_MOST_CLASSES])
    return Table("Accuracy by class", columns, largest, notes)


def _cells(result: Result[EvaluateResult]) -> tuple[str, ...]:
    content = result.content
    original, value = (
        metric(content[side], is_share=content["is_share"]) for side in ("original", "value")
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
