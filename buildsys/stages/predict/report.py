"""What report and history say about the accuracy of the original model."""

from __future__ import annotations

from typing import Any

from buildsys.report.formatting import percent, significant
from buildsys.stages.predict.result import PredictResult


def metric_text(value: float, *, is_share: bool) -> str:
    """Format a metric, a share as a percentage."""
    return percent(value) if is_share else significant(value)


def key_figure(result: PredictResult) -> str:
    """State the metric and the number of samples."""
    text = metric_text(result["value"], is_share=result["is_share"])
    return f"{result['title']} {text} of {result['samples']:,} samples"


def history_figures(result: PredictResult) -> dict[str, Any]:
    """Collect the metric."""
    return {"value": result["value"]} if "value" in result else {}
