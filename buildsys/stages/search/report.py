"""What the report says about a search for nodes to keep in fp32."""

import math
from collections.abc import Iterable, Iterator, Sequence

from buildsys.report import formatting as q
from buildsys.report.report_types import Table
from buildsys.report.result_files import Result
from buildsys.stages.search.result import SearchedGraph, SearchResult

_MOST_NODES = 12
_LOSS = "loss (interval of other samples)>"


def key_figure(result: SearchResult) -> str:
    """Count the nodes in fp32; name what is limited without and with them, and the work left."""
    precision, count, drop = result["precision"], len(result["nodes"]), _drop(result)
    if result["is_fp32"]:
        limits = f"a {drop} of {result['title']}" if drop else "the limits"
        return f"all nodes stay in fp32: no choice of nodes in {precision} is within {limits}"
    low = result.get("macs_low")
    work = "" if low is None else f", {q.percent(low)} of the MACs in {precision}"
    name = f"{result['title']} loses" if drop else "relative error"
    work = f" ({drop} allowed){work}" if drop else work
    if not count:
        return f"all nodes in {precision}: {name} {_limited(result['without'])}{work}"
    nodes = f"{count} of {q.nodes(result['candidates'])} in fp32"
    change = f"{_limited(result['without'])} → {_limited(result['with'])}"
    return f"{nodes}: {name} {change}{work}"


def table(results: Iterable[Result[SearchResult]]) -> Table:
    """List the nodes that searches kept in fp32."""
    rows, notes = [], []
    for result in results:
        content, nodes = result.content, result.content.get("nodes", [])
        is_fp32 = content.get("is_fp32", False)
        without, kept = content.get("without", SearchedGraph()), content.get("with")
        errors = _error(without), _error(kept or SearchedGraph())
        limit, low = content.get("limits", {}).get("rtol"), content.get("macs_low")
        rounded = q.NOTHING if limit is None else f"{limit:.3g}"
        rows.append(
            (
                result.variant,
                "all" if is_fp32 else f"{len(nodes)} of {q.count(content.get('candidates'))}",
                " → ".join(map(q.error, errors)),
                _drop(content) or rounded,
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


def details(results: Sequence[Result[SearchResult]]) -> Iterator[Table]:
    """Yield the graphs that were judged by the metric of `evaluate`."""
    for result in results:
        content, rows = result.content, []
        for graph in content.get("graphs", []):
            value = loss = q.NOTHING
            if {"value", "loss", "low", "high"} <= graph.keys():  # else outputs are NaN
                value = q.metric(graph["value"], is_share=content.get("is_share", True))
                loss = q.loss(graph)
            verdict = ": ".join(filter(None, (graph.get("verdict"), graph.get("reason"))))
            rows.append((q.count(graph.get("in_fp32")), value, loss, verdict))
        columns = "nodes in fp32>", f"{content.get('title')}>", _LOSS, "verdict"
        title = f"Graphs judged by the search {result.variant}, {_drop(content)} allowed"
        yield Table(title, columns, tuple(rows))


def _drop(content: SearchResult) -> str:
    """Write the largest loss of a metric for the search, "" if errors are its limit."""
    drop = content.get("limits", {}).get("drop")
    return "" if drop is None else f"loss of {q.percent(drop)}"


def _limited(graph: SearchedGraph) -> str:
    """Write the loss of a metric, or the error."""
    if "loss" in graph:
        return q.percent(graph["loss"])
    return q.NOTHING if "verdict" in graph else q.error(_error(graph))


def _error(graph: SearchedGraph) -> float | None:
    """Read the error of a searched graph; NaN if it is not finite."""
    error = graph.get("relative")
    return math.nan if error is None and graph.get("passed") is False else error
