"""What report and history say about a benchmark."""

from __future__ import annotations

import math
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.benchmarks import contender_title
from buildsys.stages.bench.result import (
    ENGINE,
    ENGINE_CUDA_GRAPH,
    BenchResult,
    ContenderResult,
    engine_contender,
    recorded_interval,
)

_MAIN_CASE = "opt"  # without it, the first case
_CLEARLY_FASTER = 0.98


def key_figure(result: BenchResult) -> str:
    """Describe the engine's latency, and a contender that is faster."""

    def p50(contender: ContenderResult) -> str:
        gpu = contender.get("gpu")
        by_gpu = f" (GPU {q.with_interval(gpu)})" if gpu else ""
        return f"p50 {q.with_interval(contender)} ms{by_gpu}"

    name = "opt" if "opt" in result["cases"] else next(iter(result["cases"]), "opt")
    case = result["cases"][name]
    contenders = case["contenders"]
    own = contenders[engine_contender(contenders)]
    if result.get("noisy") or own.get("noisy"):
        return f"noisy, no headline ({name}: p50 {q.latency(own['p50_ms'], noisy=True)} ms)"
    text = f"{name}: {p50(own)}, {q.significant(own['throughput_per_s'])}/s"
    speedup = case.get("speedup")
    text += f", {q.speedup(speedup)} torch" if speedup is not None else ""
    steady = {name: timed for name, timed in contenders.items() if not timed.get("noisy")}
    graph = steady.get(ENGINE_CUDA_GRAPH)
    text += "" if graph is None or graph is own else f"; CUDA graph {p50(graph)}"
    fastest = min(steady, key=lambda name: steady[name].get("p50_ms", math.inf))
    if steady[fastest]["p50_ms"] < _CLEARLY_FASTER * min(
        steady[name]["p50_ms"] for name in (ENGINE, ENGINE_CUDA_GRAPH) if name in steady
    ):
        text += f"; {contender_title(fastest)} is faster: {p50(steady[fastest])}"
    noisy = q.first_names([contender_title(name) for name in contenders if name not in steady], 3)
    return f"{text}; noisy: {noisy}" if noisy else text


def _as_list(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def history_figures(result: BenchResult) -> dict[str, Any]:
    """Collect the engine's latencies in the main case."""
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
        "latency_interval_ms": _as_list(recorded_interval(own)),
        "gpu_p50_ms": gpu.get("p50_ms"),
        "gpu_interval_ms": _as_list(recorded_interval(gpu)),
        "throughput_per_s": own.get("throughput_per_s"),
        "speedup": case.get("speedup"),
        "fastest": min(medians, key=lambda name: medians[name], default=None),
        "device_memory_bytes": own.get("device_memory_bytes"),
        "noisy": result.get("noisy") or ([own["noisy"]] if own.get("noisy") else None),
    }
