"""What report and history say about a benchmark."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.engines import contender_title
from buildsys.report.report_types import Table
from buildsys.report.result_files import Result
from buildsys.stages.bench.result import (
    COLD_TIMES,
    ENGINE_CONTENDERS,
    BenchCase,
    BenchResult,
    headline,
)

_CLEARLY_FASTER = 0.98
_COLD_FIGURES = (
    *COLD_TIMES, "warmup_calls", "warmup_ms", "peak_bytes", "gpu_imports_bytes", "gpu_called_bytes",
)  # fmt: skip
_COLD_COLUMNS = (
    "engine", "imports ms>", "load ms>", "first call ms>", "warm-up>",
    "memory>", "+ load>", "+ first call>", "peak>",
)  # fmt: skip
_COLD_NOTES = (
    "Medians (and ranges) of fresh processes that use load_engine; files are in the page cache.",
    "Imports count from the start of the process.",
    "Warm-up: calls before the first that is within 10 % of the steady median.",
    "Memory is resident: after imports, what loading and the first call add, and the peak.",
    "Noisy: a median that is not known within 5 %.",
)


def key_figure(result: BenchResult) -> str:
    """Describe the engine's latency, and a contender that is faster."""
    name, case, contender = headline(result)
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
    name, case, contender = headline(result)
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
        **{n: v for n, v in _medians(result).items() if n in _COLD_FIGURES},
        "noisy_starts": [*result.get("cold_start", {}).get("noisy", {})] or None,
    }


def table(results: Iterable[Result[BenchResult]]) -> Table:
    """List the cold starts of all engines."""
    rows, notes = [], [*_COLD_NOTES]
    for result in results:
        measured: Mapping[str, Any] = result.content.get("cold_start", {})
        if problem := measured.get("problem"):
            notes.append(f"{result.variant} was not started: {problem}")
        if not measured:
            continue
        medians = _medians(result.content)
        noisy = measured.get("noisy", {})
        times = [_with_range(measured.get(n, ()), noisy=n in noisy) for n in COLD_TIMES]
        calls, warmup_ms = (medians.get(f"warmup_{unit}") for unit in ("calls", "ms"))
        times.append(
            q.NOTHING if calls is None else f"{q.number(calls)} ({q.number(warmup_ms)} ms)"
        )
        more = _added(medians, "imports", "loaded"), _added(medians, "loaded", "called")
        imports, peak = (q.size(medians.get(f"{when}_bytes")) for when in ("imports", "peak"))
        rows.append((result.variant, *times, imports, *more, peak))
    return Table("Cold start", _COLD_COLUMNS, tuple(rows), tuple(notes))


def _medians(result: BenchResult) -> dict[str, float]:
    """Compute the medians of a cold start."""
    measured: Mapping[str, Any] = result.get("cold_start", {})
    return {name: median(values) for name, values in measured.items() if isinstance(values, list)}


def _with_range(values: Sequence[float], *, noisy: bool = False) -> str:
    if not values:
        return q.NOTHING
    ends = q.number(min(values)), q.number(max(values))
    text = q.latency(median(values), noisy=True) if noisy else q.number(median(values))
    text += "" if len({*ends}) == 1 else f" ({' to '.join(ends)})"
    return f"{text}, noisy" if noisy else text


def _added(medians: Mapping[str, float], before: str, after: str) -> str:
    """Describe the memory that a step adds, to the process and to the GPU."""
    parts = []
    for place in ("", "gpu_"):
        ends = medians.get(f"{place}{before}_bytes"), medians.get(f"{place}{after}_bytes")
        if ends[0] is not None and ends[1] is not None:
            added = q.size(max(ends[1] - ends[0], 0))
            parts.append(f"GPU +{added}" if place else f"+{added}")
    return ", ".join(parts) or q.NOTHING


def _steady_medians(case: BenchCase) -> dict[str, float]:
    return {
        name: p50_ms
        for name, timed in case.get("contenders", {}).items()
        if (p50_ms := timed.get("p50_ms")) is not None and not timed.get("noisy")
    }
