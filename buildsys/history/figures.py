"""Figures for the history from a target's result file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.history.builds import GPU, HOST, Measurement
from buildsys.report.key_figures import result_type, stage_report
from buildsys.report.result_files import parse, read_content
from buildsys.stages.bench.result import BenchResult, ContenderResult, recorded_interval

_RELATIVE = "relative"  # error of a check; None: not finite
_LATENCIES = (
    "p90_ms", "p95_ms", "p99_ms", "mean_ms", "min_ms", "max_ms", "variation", "throughput_per_s",
)  # fmt: skip
Figures = dict[str, Any]


def build_figures(stage: str, result: Mapping[str, Any]) -> Figures:
    """Collect the figures of a result, as far as it has them."""
    figures: Figures = {"peak_rss_mib": result.get("peak_rss_mib")}
    if collect := stage_report(stage, "history_figures"):
        figures |= collect(parse(result, result_type(stage)))
    return {n: value for n, value in figures.items() if value is not None or n == _RELATIVE}


def read_measurements(file: Path) -> list[Measurement]:
    """Read the measurements from the result file of a benchmark.

    Raises: OSError, ValueError: it cannot be read.
    """
    return [
        Measurement(
            case,
            name,
            clock,
            latencies.get("count", len(latencies.get("samples_ms", []))),
            p50_ms,
            recorded_interval(latencies),
            figures.get("dims", {}),
            figures.get("batch"),
            {name: value for name in _LATENCIES if (value := latencies.get(name)) is not None},
        )
        for case, figures in read_content(file, BenchResult).get("cases", {}).items()
        for name, contender in figures.get("contenders", {}).items()
        for clock, latencies in _clocks(contender)
        if (p50_ms := latencies.get("p50_ms")) is not None and math.isfinite(p50_ms)
    ]


def _clocks(contender: ContenderResult) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield HOST, contender
    if "gpu" in contender:
        yield GPU, contender["gpu"]
