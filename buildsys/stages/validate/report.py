"""What report and history say about the check of a graph."""

from typing import Any

from buildsys.report.checks import Compared
from buildsys.report.formatting import error_text, recorded_error, worst_comparison
from buildsys.report.result_files import Result
from buildsys.stages.validate.result import ValidateResult


def key_figure(result: ValidateResult) -> str:
    """Name the largest error."""
    return error_text(worst_comparison(result["graphs"]))


def compared(result: Result[ValidateResult]) -> Compared:
    """List the comparisons of both graphs."""
    content, subject = result.content, "golden outputs against the graphs in ONNX Runtime"
    return Compared(subject, list(content.get("graphs", {}).items()), content.get("dims", {}))


def history_figures(result: ValidateResult) -> dict[str, Any]:
    """Collect the largest error with its place."""
    return recorded_error(worst_comparison(result.get("graphs", {})))
