"""Figures for the history from a target's result file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.history.builds import GPU, HOST, Measurement
from buildsys.onnx_graphs.result_types import ComparedCases
from buildsys.report.key_figures import worst_comparison
from buildsys.report.results.reader import RESULT_TYPES, parse, read_content
from buildsys.stages.bench.result import BenchResult, ContenderResult, engine_contender
from buildsys.stages.command.result import CommandResult
from buildsys.stages.engine.result import EngineResult
from buildsys.stages.gate.result import GateResult

_RELATIVE = "relative"  # error of a check; None: not finite
_MAIN_CASE = "opt"  # without it, the first case
_LATENCIES = (
    "p90_ms", "p95_ms", "p99_ms", "mean_ms", "min_ms", "max_ms", "variation", "throughput_per_s",
)  # fmt: skip
Figures = dict[str, Any]


def build_figures(stage: str, result: Mapping[str, Any]) -> Figures:
    """Collect the figures of a result, as far as it has them."""
    figures: Figures = {"peak_rss_mib": result.get("peak_rss_mib")}
    if stage in _FIGURES:
        figures |= _FIGURES[stage](parse(result, RESULT_TYPES[stage]))
    return {name: one for name, one in figures.items() if one is not None or name == _RELATIVE}


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
            _interval(latencies),
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


def _interval(latencies: Mapping[str, Any]) -> tuple[float, float] | None:
    """Read the interval of a median, None if it was not measured."""
    match latencies.get("p50_interval_ms"):
        case [float(low), float(high)] if math.isfinite(low) and math.isfinite(high):
            return low, high
        case _:
            return None


def _listed(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)  # as JSON has it


def _bench(result: BenchResult) -> Figures:
    cases = result.get("cases", {})
    name = _MAIN_CASE if _MAIN_CASE in cases else next(iter(cases), "")
    case = cases.get(name, {})
    contenders = case.get("contenders", {})
    contender = engine_contender(contenders)
    own = contenders.get(contender, {})
    gpu = own.get("gpu", {})
    medians = {
        name: p50_ms
        for name, timed in contenders.items()
        if (p50_ms := timed.get("p50_ms")) is not None and not timed.get("noisy")
    }
    return {
        "case": name,
        "contender": contender,
        "latency_p50_ms": own.get("p50_ms"),
        "latency_interval_ms": _listed(_interval(own)),
        "gpu_p50_ms": gpu.get("p50_ms"),
        "gpu_interval_ms": _listed(_interval(gpu)),
        "throughput_per_s": own.get("throughput_per_s"),
        "speedup": case.get("speedup"),
        "fastest": min(medians, key=lambda name: medians[name], default=None),
        "device_memory_bytes": own.get("device_memory_bytes"),
        "noisy": result.get("noisy") or ([own["noisy"]] if own.get("noisy") else None),
    }


def _engine(result: EngineResult) -> Figures:
    names = ("build_seconds", "device_memory_bytes", "engine_sha256")
    return {"bytes": result.get("engine_bytes"), **{name: result.get(name) for name in names}}


def _checked(graphs: Mapping[str, ComparedCases]) -> Figures:
    """Find the largest relative error, None if not finite, and its place."""
    worst = worst_comparison(graphs)
    if worst is None:
        return {}
    error, place = worst
    return {_RELATIVE: error if math.isfinite(error) else None, "relative_at": place}


def _graph(graph: Mapping[str, Any]) -> Figures:
    return {"bytes": graph.get("bytes"), "nodes": graph.get("nodes")}


def _gate(result: GateResult) -> Figures:
    """Collect the figures measured by the gate, for the gates of later builds."""
    measured = {k: v for k, v in result.get("figures", {}).items() if math.isfinite(v)}
    options = result.get("engine_options")
    return {"engine": result.get("engine"), "engine_options": options, **measured}


def _command(result: CommandResult) -> Figures:
    """Collect reported numbers with their units, and the outputs' size."""
    sizes = [output.get("bytes", 0) for output in result.get("outputs", {}).values()]
    return {"figures": result.get("figures") or None, "bytes": sum(sizes) if sizes else None}


_FIGURES: Mapping[str, Callable[[Any], Figures]] = {
    "bench": _bench,
    "command": _command,
    "convert": lambda result: {"bytes": result.get("bytes_after")},
    "engine": _engine,
    "export": _graph,
    "gate": _gate,
    "simplify": lambda result: _graph(result.get("after", {})),
    "validate": lambda result: _checked(result.get("graphs", {})),
    "verify": lambda result: _checked({"": result.get("cases", {})}),
}
