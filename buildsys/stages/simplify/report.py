"""What report and history say about a simplified graph."""

from typing import Any

from buildsys.report import formatting as q
from buildsys.report.checks import Compared
from buildsys.report.result_files import Result
from buildsys.stages.simplify.result import SimplifyResult


def key_figure(result: SimplifyResult) -> str:
    """Count the nodes before and after."""
    return q.node_change(result)


def compared(result: Result[SimplifyResult]) -> Compared:
    """List the comparison of both graphs."""
    cases = [("simplified against exported", result.content.get("equal", {}))]
    return Compared("exported graph against simplified graph", cases)


def history_figures(result: SimplifyResult) -> dict[str, Any]:
    """Collect the size of the graph."""
    after = result.get("after", {})
    return {"bytes": after.get("bytes"), "nodes": after.get("nodes")}
