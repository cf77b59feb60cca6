"""What report and history say about a converted graph."""

from typing import Any

from buildsys.report import formatting as q
from buildsys.report.checks import Compared
from buildsys.report.result_files import Result
from buildsys.stages.convert.result import ConvertResult


def key_figure(result: ConvertResult) -> str:
    """Compare the sizes before and after, or the opsets."""
    if before := result.get("opset_before"):
        return f"opset {before} → {result['opset']}"
    return f"{q.size(result['bytes_before'])} → {q.size(result['bytes_after'])}"


def compared(result: Result[ConvertResult]) -> Compared:
    """List the comparison with the golden outputs."""
    subject = f"golden outputs against the rounded {result.variant} graph"
    if before := result.content.get("opset_before"):
        subject = f"the graph of opset {before} against the {result.variant} graph"
    return Compared(subject, [(result.variant, result.content.get("cases", {}))])


def history_figures(result: ConvertResult) -> dict[str, Any]:
    """Collect the size of the graph."""
    return {"bytes": result.get("bytes_after")}
