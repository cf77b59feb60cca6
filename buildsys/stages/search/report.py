"""What the report says about a search for nodes to keep in fp32."""

from __future__ import annotations

from buildsys.report import formatting as q
from buildsys.report.stage_lines import graph_error
from buildsys.stages.search.result import SearchResult


def key_figure(result: SearchResult) -> str:
    """Count the nodes in fp32; name the errors without and with them, and the work left."""
    precision, count = result["precision"], len(result["nodes"])
    before = graph_error(result["without"])
    if result["is_fp32"]:
        return f"all nodes stay in fp32: no choice of nodes in {precision} is within the limits"
    low = result.get("macs_low")
    work = "" if low is None else f", {q.percent(low)} of the MACs in {precision}"
    if not count:
        return f"all nodes in {precision}: relative error {q.error(before)}{work}"
    after = graph_error(result["with"])
    nodes = f"{count} of {q.nodes(result['candidates'])} in fp32"
    return f"{nodes}: relative error {q.error(before)} → {q.error(after)}{work}"
