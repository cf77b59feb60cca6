"""What report and history say about the accuracy of the original model."""

from typing import Any

from buildsys.report.formatting import metric
from buildsys.stages.predict.result import PredictResult


def key_figure(result: PredictResult) -> str:
    """State the metric and the number of samples."""
    text = metric(result["value"], is_share=result["is_share"])
    return f"{result['title']} {text} of {result['samples']:,} samples"


def history_figures(result: PredictResult) -> dict[str, Any]:
    """Collect the metric."""
    return {"value": result["value"]} if "value" in result else {}
