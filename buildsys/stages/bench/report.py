"""What report and history say about a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.engines import contender_title
from buildsys.stages.bench.result import (
    ENGINE_CONTENDERS,
    BenchCase,
    BenchResult,
    engine_contender,
)

_CLEARLY_FASTER = 0.98


def key_figure(result: BenchResult) -> str:
    """Describe the engine's latency, and a contender that is faster."""
    name = _main_case(result["cases"])
    case = result["cases"][name]
    contenders = case["contenders"]
    own = contenders[engine_contender(contenders)]
    if result.get("noisy") or own.get("noisy"):
        return f"noisy, no headline ({name}: p50 {q.latency(own['p50_ms'], noisy=True)} ms)"
    text = f"{name}: p50 {q.with_interval(own)} ms, {q.significant(own['throughput_per_s'])}/s"
    speedup = case.get("speedup")
    text += f", {q.speedup(speedup)} torch" if speedup is not None else ""
    steady = {
        contender: timed["p50_ms"]
        for contender, timed in contenders.items()
        if not timed.get("noisy")
    }
    fastest = min(steady, key=lambda contender: steady[contender])
    own_ms = min(steady[contender] for contender in ENGINE_CONTENDERS if contender in steady)
    if steady[fastest] < _CLEARLY_FASTER * own_ms:
        p50 = q.with_interval(contenders[fastest])
        text += f"; {contender_title(fastest)} is faster: p50 {p50} ms"
    return text


def _main_case(cases: Mapping[str, BenchCase]) -> str:
    return "opt" if "opt" in cases else next(iter(cases), "")


def history_figures(result: BenchResult) -> dict[str, Any]:
    """Collect the engine's latencies in the main case."""
    cases = result.get("cases", {})
    name = _main_case(cases)
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
        "latency_interval_ms": own.get("p50_interval_ms"),
        "gpu_p50_ms": gpu.get("p50_ms"),
        "gpu_interval_ms": gpu.get("p50_interval_ms"),
        "throughput_per_s": own.get("throughput_per_s"),
        "speedup": case.get("speedup"),
        "fastest": min(medians, key=lambda name: medians[name], default=None),
        "device_memory_bytes": own.get("device_memory_bytes"),
        "noisy": result.get("noisy") or ([own["noisy"]] if own.get("noisy") else None),
    }
