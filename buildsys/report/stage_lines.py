"""Graphs, gates, commands and searches of mixed precision as lines of the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from buildsys.manifest.backend_choices import base_precision, full_name, is_auto
from buildsys.report import formatting as q
from buildsys.report.report_types import (
    CommandLine,
    ConversionLine,
    GateLine,
    GraphHistory,
    GraphSize,
    GraphStage,
    OperatorCount,
    SearchLine,
    SurgeryLine,
    TimingLine,
    fill,
)
from buildsys.report.result_files import NOISY, AnyResult, Result, of_type
from buildsys.stages.command.result import CommandResult
from buildsys.stages.convert.result import ConvertResult
from buildsys.stages.export.result import ExportResult
from buildsys.stages.gate.result import GateResult
from buildsys.stages.search.result import SearchedGraph, SearchResult
from buildsys.stages.simplify.result import SimplifyResult
from buildsys.stages.surgery.result import SurgeryResult

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
_FULL = "fp32"


def graph_history(
    export: ExportResult,
    simplify: SimplifyResult,
    graphs: Mapping[str, Mapping[str, Any]],
    dims: Mapping[str, int],
) -> GraphHistory:
    """Collect the graph's sizes and counts at every stage.

    ``graphs`` are the facts of the written graphs by target, ``dims`` the sizes for which
    multiply-accumulates are counted.
    """
    exported: Mapping[str, Any] = export if "operators" in export else simplify.get("before") or {}
    simplified: Mapping[str, Any] = simplify.get("after") or {}
    old, new = exported.get("operators"), simplified.get("operators")
    counts = [
        OperatorCount(
            name,
            None if old is None else old.get(name, 0),
            None if new is None else new.get(name, 0),
        )
        for name in sorted({*(old or {}), *(new or {})})
    ]
    if new is not None:  # the largest changes first
        counts.sort(key=lambda line: -abs((line.simplified or 0) - (line.exported or 0)))
    sizes = [
        GraphSize(graph.get("nodes"), graph.get("bytes")) if graph else None
        for graph in (exported, simplified)
    ]
    return fill(
        GraphHistory,
        export,
        exporter=export.get("exporter", ""),
        tool=simplify.get("tool", ""),
        exported=sizes[0],
        simplified=sizes[1],
        operators=tuple(counts),
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


def surgery_lines(result: Result[SurgeryResult]) -> Iterator[SurgeryLine]:
    """Yield the completed steps of one surgery target."""
    for step in result.content.get("steps", []):
        worst = q.worst_comparison({"": step.get("cases", {})})
        yield fill(SurgeryLine, step, when=result.variant, relative=worst and worst[0])


def conversion_line(result: Result[ConvertResult]) -> ConversionLine:
    """Describe one converted precision."""
    kept_fp32 = tuple(result.content.get("kept_fp32", []))
    own = {"precision": result.variant, "status": result.status, "kept_fp32": kept_fp32}
    return fill(ConversionLine, result.content, **own)


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


def search_lines(
    results: Sequence[AnyResult], manifest: Mapping[str, Any], bench: Sequence[TimingLine]
) -> Iterator[SearchLine]:
    """Yield one line per search.

    Engines of the same backend in the precision alone, and in fp32, are named next to those of the
    search, as the middle between them is what was searched for.
    """
    searches = of_type(results, SearchResult)
    variants = {result.variant for result in searches}
    specs = manifest.get("engines", ())
    for result in searches:
        content = result.content
        served = [spec for spec in specs if _variant_of(spec, variants) == result.variant]
        backends = {spec["backend"] for spec in served}
        precisions = {base_precision(spec) for spec in served} | {_FULL}
        rivals = [
            spec
            for spec in specs
            if not is_auto(spec)
            and spec["backend"] in backends
            and base_precision(spec) in precisions
        ]
        yield fill(
            SearchLine,
            content,
            variant=result.variant,
            status=result.status,
            kept=tuple(map(tuple, content.get("nodes", []))),
            is_fp32=content.get("is_fp32", False),
            is_smallest=content.get("is_smallest", False),
            error_without=graph_error(content.get("without", SearchedGraph())),
            error_with=graph_error(content.get("with", SearchedGraph())),
            rtol=content.get("limits", {}).get("rtol"),
            engines=tuple(filter(None, (_timed(spec, bench) for spec in (*served, *rivals)))),
        )


def _variant_of(engine: Mapping[str, Any], variants: set[str]) -> str:
    """Name the search of an engine: its own if it has its own limits, "" if none."""
    if not is_auto(engine):
        return ""
    shared = full_name(engine)
    own = f"{shared}-{engine['name']}"
    return own if own in variants else shared


def _timed(spec: Mapping[str, Any], bench: Sequence[TimingLine]) -> str:
    """Describe the latency of an engine, "" if it was not timed."""
    name = spec["name"]
    lines = [line for line in bench if line.engine == name and line.contender.startswith("engine")]
    lines = sorted((line for line in lines if line.p50_ms), key=lambda line: line.case != "opt")
    if not lines:
        return ""
    text = f"{name} ({full_name(spec)}) {q.latency(lines[0].p50_ms, noisy=lines[0].noisy)} ms"
    return f"{text} NOISY" if lines[0].noisy else text


def graph_error(graph: SearchedGraph) -> float | None:
    """Read the error of a searched graph; NaN if it is not finite."""
    error = graph.get("relative")
    return math.nan if error is None and graph.get("passed") is False else error
