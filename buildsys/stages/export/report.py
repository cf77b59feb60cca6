"""What report and history say about an export."""

from typing import Any

from buildsys.report import formatting as q
from buildsys.stages.export.result import ExportResult


def key_figure(result: ExportResult) -> str:
    """Describe the graph."""
    return f"opset {result['opset']}, {q.nodes(result['nodes'])}, {q.size(result['bytes'])}"


def history_figures(result: ExportResult) -> dict[str, Any]:
    """Collect the size of the graph."""
    return {"bytes": result.get("bytes"), "nodes": result.get("nodes")}
