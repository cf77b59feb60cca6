"""Gates, commands and searches of mixed precision as lines of the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from buildsys.manifest.backend_choices import base_precision, full_name, is_auto
from buildsys.report import formatting as q
from buildsys.report.report_types import (
    CommandLine,
    ComparedEngine,
    GateLine,
    SearchLine,
    TimingLine,
)
from buildsys.report.result_files import NOISY, AnyResult, of_type
from buildsys.stages.command.result import CommandResult
from buildsys.stages.gate.result import GateResult
from buildsys.stages.search.result import SearchedGraph, SearchResult

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


def gate_lines(results: Iterable[AnyResult]) -> tuple[GateLine, ...]:
    """List a line per gate of every engine."""
    return tuple(
        GateLine(
            engine=result.variant,
            metric=check.get("metric", ""),
            status=check.get("status", ""),
            before=check.get("before"),
            after=check.get("after"),
            change=None if check.get("status") == NOISY else check.get("change"),
            interval=(low, high) if low is not None and high is not None else None,
            text=check.get("text", ""),
            tolerance=check.get("tolerance"),
            limit=check.get("limit"),
            confidence=check.get("confidence"),
        )
        for result in of_type(results, GateResult)
        for check in result.content.get("checks", [])
        for low, high in [(check.get("low"), check.get("high"))]
    )


def gate_cells(line: GateLine) -> tuple[str, ...]:
    """Write the cells of a line for ``GATE_COLUMNS``, without markup."""
    show = SHOWN.get(line.metric, q.significant)
    interval = " to ".join(map(q.change, line.interval)) if line.interval else q.NOTHING
    bound = "≥" if line.metric in _LEAST else "≤"
    return (
        line.engine,
        line.metric.replace("_", " "),
        line.status if line.status != "failed" else "FAILED",
        q.NOTHING if line.before is None else show(line.before),
        q.NOTHING if line.after is None else show(line.after),
        q.NOTHING if line.change is None else q.change(line.change),
        interval,
        q.NOTHING if line.tolerance is None else q.percent(line.tolerance),
        q.NOTHING if line.limit is None else f"{bound} {show(line.limit)}",
    )


def command_lines(results: Iterable[AnyResult]) -> tuple[CommandLine, ...]:
    """List a line per figure of every command."""
    return tuple(
        CommandLine(
            command=result.variant,
            figure=name,
            value=figure.get("value"),
            unit=figure.get("unit", ""),
            interval=(ends[0], ends[1]) if len(ends) == 2 else None,
            least=figure.get("min"),
            most=figure.get("max"),
            passed=figure.get("passed"),
        )
        for result in of_type(results, CommandResult)
        for name, figure in result.content.get("figures", {}).items()
        for ends in [figure.get("interval", [])]
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
        served = [spec for spec in specs if variant_of(spec, variants) == result.variant]
        backends = {spec["backend"] for spec in served}
        precisions = {base_precision(spec) for spec in served} | {_FULL}
        rivals = [
            spec
            for spec in specs
            if not is_auto(spec)
            and spec["backend"] in backends
            and base_precision(spec) in precisions
        ]
        with_ = content.get("with", SearchedGraph())
        without = content.get("without", SearchedGraph())
        yield SearchLine(
            variant=result.variant,
            precision=content.get("precision", ""),
            status=result.status,
            kept=tuple(map(tuple, content.get("nodes", []))),
            candidates=content.get("candidates"),
            is_fp32=content.get("is_fp32", False),
            is_smallest=content.get("is_smallest", False),
            trials=content.get("trials"),
            error_without=graph_error(without),
            error_with=graph_error(with_),
            rtol=content.get("limits", {}).get("rtol"),
            macs_low=content.get("macs_low"),
            engines=tuple(_compared(spec, bench) for spec in (*served, *rivals)),
        )


def timed_engines(line: SearchLine) -> list[str]:
    """List the latencies of a search's engines and their rivals."""
    return [
        f"{timed.engine} ({timed.precision}) {q.latency(timed.p50_ms, noisy=timed.noisy)} ms"
        + (" NOISY" if timed.noisy else "")
        for timed in line.engines
        if timed.p50_ms is not None
    ]


def variant_of(engine: Mapping[str, Any], variants: set[str]) -> str:
    """Name the search of an engine: its own if it has its own limits, "" if none."""
    if not is_auto(engine):
        return ""
    shared = full_name(engine)
    own = f"{shared}-{engine['name']}"
    return own if own in variants else shared


def _compared(spec: Mapping[str, Any], bench: Sequence[TimingLine]) -> ComparedEngine:
    lines = [
        line
        for line in bench
        if line.engine == spec["name"] and line.contender.startswith("engine") and line.p50_ms
    ]
    lines.sort(key=lambda line: (line.case != "opt", line.p50_ms))
    best = lines[0] if lines else None
    p50 = best.p50_ms if best else None
    return ComparedEngine(spec["name"], full_name(spec), p50, bool(best and best.noisy))


def graph_error(graph: SearchedGraph) -> float | None:
    """Read the error of a searched graph; NaN if it is not finite."""
    error = graph.get("relative")
    return math.nan if error is None and graph.get("passed") is False else error
