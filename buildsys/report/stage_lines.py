"""Graphs, gates, commands and searches of mixed precision as lines of the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.report_types import (
    CommandLine,
    GateLine,
    GraphHistory,
    GraphStage,
    SearchLine,
    fill,
)
from buildsys.report.result_files import NOISY, AnyResult, of_type
from buildsys.stages.command.result import CommandResult
from buildsys.stages.export.result import ExportResult
from buildsys.stages.gate.result import GateResult
from buildsys.stages.search.result import SearchedGraph, SearchResult
from buildsys.stages.simplify.result import SimplifyResult

SHOWN: Mapping[str, Callable[[float], str]] = {
    "latency": lambda value: f"{q.significant(value * 1e3)} ms",
    "throughput": lambda value: f"{q.significant(value)}/s",
    "size": q.size,
    "memory": q.size,
    "error": q.error,
    "build_time": q.duration,
}
GATE_COLUMNS = (
    "engine", "figure", "status", "before>", "now>", "worse by>", "interval>", "tolerance>",
    "limit>",
)  # fmt: skip
_LEAST = ("throughput",)  # figures with a lower limit
COMMAND_COLUMNS = ("command", "figure", "value>", "interval>", "limit>", "within the limit")


def graph_history(
    export: ExportResult,
    simplify: SimplifyResult,
    graphs: Mapping[str, Mapping[str, Any]],
    dims: Mapping[str, int],
) -> GraphHistory:
    """Collect the graph's figures at every stage.

    ``graphs`` are the facts of the written graphs by target, ``dims`` the sizes for which
    multiply-accumulates are counted.
    """
    return fill(
        GraphHistory,
        export,
        exporter=export.get("exporter", ""),
        tool=simplify.get("tool", ""),
        stages=tuple(_graph_stage(target, facts) for target, facts in graphs.items()),
        macs_at=dims,
    )


def _graph_stage(target: str, facts: Mapping[str, Any]) -> GraphStage:
    stage, _, rest = target.partition(":")
    variant = rest.partition(":")[2]
    stored, macs = facts["initializers"], facts["macs"]
    return GraphStage(
        stage=f"{stage}:{variant}" if variant else stage,
        opsets=facts["opsets"],
        weights=facts["weights"],
        initializers=stored["count"],
        initializer_bytes=stored["bytes"],
        macs=macs["total"],
        operator_macs=macs["operators"],
        not_counted=macs["not_counted"],
    )


def gate_lines(results: Iterable[AnyResult]) -> tuple[GateLine, ...]:
    """List a line per gate of every engine."""
    lines = []
    for result in of_type(results, GateResult):
        for check in result.content.get("checks", []):
            change = None if check.get("status") == NOISY else check.get("change")
            ends = check.get("low"), check.get("high")
            interval = None if None in ends else ends
            own = {"engine": result.variant, "change": change, "interval": interval}
            lines.append(fill(GateLine, check, **own))
    return tuple(lines)


def gate_cells(line: GateLine) -> tuple[str, ...]:
    """Write the cells of a line for ``GATE_COLUMNS``, without markup."""
    show = SHOWN.get(line.metric, q.significant)
    bound = "≥" if line.metric in _LEAST else "≤"
    return (
        line.engine,
        line.metric.replace("_", " "),
        line.status if line.status != "failed" else "FAILED",
        q.NOTHING if line.before is None else show(line.before),
        q.NOTHING if line.after is None else show(line.after),
        q.NOTHING if line.change is None else q.change(line.change),
        " to ".join(map(q.change, line.interval)) if line.interval else q.NOTHING,
        q.NOTHING if line.tolerance is None else q.percent(line.tolerance),
        q.NOTHING if line.limit is None else f"{bound} {show(line.limit)}",
    )


def command_lines(results: Iterable[AnyResult]) -> tuple[CommandLine, ...]:
    """List a line per figure of every command."""
    return tuple(
        fill(
            CommandLine,
            figure,
            command=result.variant,
            figure=name,
            interval=tuple(figure.get("interval", ())) or None,
            least=figure.get("min"),
            most=figure.get("max"),
        )
        for result in of_type(results, CommandResult)
        for name, figure in result.content.get("figures", {}).items()
    )


def command_cells(line: CommandLine) -> tuple[str, ...]:
    """Write the cells of a line for ``COMMAND_COLUMNS``, without markup."""
    limits = [f"≥ {q.number(line.least)}"] if line.least is not None else []
    limits += [f"≤ {q.number(line.most)}"] if line.most is not None else []
    return (
        line.command,
        line.figure,
        f"{q.number(line.value)} {line.unit}".rstrip() if line.value is not None else q.NOTHING,
        q.interval(line.interval),
        " and ".join(limits) or q.NOTHING,
        q.within_limit(line.passed),
    )


def search_lines(results: Iterable[AnyResult]) -> tuple[SearchLine, ...]:
    """List a line per search."""
    return tuple(
        fill(
            SearchLine,
            result.content,
            variant=result.variant,
            status=result.status,
            kept=tuple(map(tuple, result.content.get("nodes", []))),
            is_fp32=result.content.get("is_fp32", False),
            is_smallest=result.content.get("is_smallest", False),
            error_without=graph_error(result.content.get("without", SearchedGraph())),
            error_with=graph_error(result.content.get("with", SearchedGraph())),
            rtol=result.content.get("limits", {}).get("rtol"),
        )
        for result in of_type(results, SearchResult)
    )


def graph_error(graph: SearchedGraph) -> float | None:
    """Read the error of a searched graph; NaN if it is not finite."""
    error = graph.get("relative")
    return math.nan if error is None and graph.get("passed") is False else error
