"""Nodes that a search keeps in fp32, and the latencies that it bought."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from buildsys.manifest.backend_choices import base_precision, full_name, is_auto
from buildsys.report import formatting as q
from buildsys.report.results.engine_lines import ComparedEngine, SearchLine, TimingLine
from buildsys.report.results.reader import AnyResult, of_type
from buildsys.stages.search.result import SearchedGraph, SearchResult

_FULL = "fp32"


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
