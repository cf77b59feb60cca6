"""What report and history say about a benchmark."""

from typing import Any

from buildsys.report import formatting as q
from buildsys.report.engines import contender_title
from buildsys.stages.bench.result import ENGINE_CONTENDERS, BenchCase, BenchResult, engine_contender

_CLEARLY_FASTER = 0.98


def key_figure(result: BenchResult) -> str:
    """Describe the engine's latency, and a contender that is faster."""
    name, case, contender = _headline(result)
    contenders = case["contenders"]
    own = contenders[contender]
    if own.get("noisy"):
        return f"noisy, no headline ({name}: p50 {q.latency(own['p50_ms'], noisy=True)} ms)"
    text = f"{name}: p50 {q.with_interval(own)} ms"
    speedup = case.get("speedup")
    text += f", {q.speedup(speedup)} torch" if speedup is not None else ""
    medians = _steady_medians(case)
    fastest = min(medians, key=lambda contender: medians[contender])
    own_ms = min(medians[contender] for contender in ENGINE_CONTENDERS if contender in medians)
    if medians[fastest] < _CLEARLY_FASTER * own_ms:
        p50 = q.with_interval(contenders[fastest])
        text += f"; {contender_title(fastest)} is faster: p50 {p50} ms"
    return text


def history_figures(result: BenchResult) -> dict[str, Any]:
    """Collect the engine's latencies in the main case."""
    name, case, contender = _headline(result)
    own = case.get("contenders", {}).get(contender, {})
    gpu, medians = own.get("gpu", {}), _steady_medians(case)
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
        "noisy": [own["noisy"]] if own.get("noisy") else None,
    }


def _headline(result: BenchResult) -> tuple[str, BenchCase, str]:
    """Find the main case and the engine's contender in it."""
    cases = result.get("cases", {})
    name = "opt" if "opt" in cases else next(iter(cases), "")
    case = cases.get(name, {})
    return name, case, engine_contender(case.get("contenders", {}))


def _steady_medians(case: BenchCase) -> dict[str, float]:
    return {
        name: p50_ms
        for name, timed in case.get("contenders", {}).items()
        if (p50_ms := timed.get("p50_ms")) is not None and not timed.get("noisy")
    }
