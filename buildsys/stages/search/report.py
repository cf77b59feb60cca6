"""What the report says about a search for nodes to keep in fp32."""

from __future__ import annotations

import math
from collections.abc import Iterable

from buildsys.report import formatting as q
from buildsys.report.report_types import Table
from buildsys.report.result_files import Result
from buildsys.stages.search.result import SearchedGraph, SearchResult

_MOST_NODES = 12


def key_figure(result: SearchResult) -> str:
    """Count the nodes in fp32; name the errors without and with them, and the work left."""
    precision, count = result["precision"], len(result["nodes"])
    before = _error(result["without"])
    if result["is_fp32"]:
        return f"all nodes stay in fp32: no choice of nodes in {precision} is within the limits"
    low = result.get("macs_low")
    work = "" if low is None else f", {q.percent(low)} of the MACs in {precision}"
    if not count:
        return f"all nodes in {precision}: relative error {q.error(before)}{work}"
    after = _error(result["with"])
    nodes = f"{count} of {q.nodes(result['candidates'])} in fp32"
    return f"{nodes}: relative error {q.error(before)} → {q.error(after)}{work}"


def table(results: Iterable[Result[SearchResult]]) -> Table:
    """List the nodes that searches kept in fp32."""
    rows, notes = [], []
    for result in results:
        content, nodes = result.content, result.content.get("nodes", [])
        is_fp32 = content.get("is_fp32", False)
        without, kept = content.get("without", SearchedGraph()), content.get("with")
        errors = _error(without), _error(kept or SearchedGraph())
        limit, low = content.get("limits", {}).get("rtol"), content.get("macs_low")
        rows.append(
            (
                result.variant,
                "all" if is_fp32 else f"{len(nodes)} of {q.count(content.get('candidates'))}",
                " → ".join(map(q.error, errors)),
                q.NOTHING if limit is None else f"{limit:.3g}",
                q.NOTHING if low is None else q.percent(low),
            )
        )
        if is_fp32:
            text = f"No choice of nodes in {content.get('precision')} is within the limits."
            notes.append(text)
        elif nodes:
            names = q.first_names([name for name, *_ in nodes], _MOST_NODES)
            notes.append(f"In fp32 for {result.variant}: {names}.")
    columns = (
        "search", "nodes in fp32>", "relative error>", "limit of the search>",
        "MACs in low precision>",
    )  # fmt: skip
    return Table("Mixed precision", columns, tuple(rows), tuple(notes))


def _error(graph: SearchedGraph) -> float | None:
    """Read the error of a searched graph; NaN if it is not finite."""
    error = graph.get("relative")
    return math.nan if error is None and graph.get("passed") is False else error
