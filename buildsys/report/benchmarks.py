"""Benchmarks as tables: latencies, GPU clocks and state, notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from buildsys.manifest.shape_cases import format_dims
from buildsys.report.formatting import case_order, percent, plain
from buildsys.report.report_types import TimingLine, fill
from buildsys.report.result_files import NOISY, AnyResult, Result, of_type
from buildsys.stages.bench.result import (
    ENGINE_CONTENDERS,
    ENGINE_CUDA_GRAPH,
    BenchCase,
    BenchResult,
    engine_contender,
)

_READINGS = {
    "sm_clock_mhz": "MHz", "memory_clock_mhz": "MHz", "power_w": "W", "temperature_c": "°C",
}  # fmt: skip
_TITLES = {
    ENGINE_CUDA_GRAPH: "engine, CUDA graph",
    "torch_cuda_graph": "torch, CUDA graph",
    "torch_compile": "torch.compile",
    "onnxruntime": "ONNX Runtime (defaults)",
}


def contender_title(name: str) -> str:
    """Name a contender for people."""
    return _TITLES.get(name, name)


def timings(results: Iterable[AnyResult]) -> tuple[TimingLine, ...]:
    """List the latencies of all benchmarks, each engine above its baselines."""
    lines = []
    for result, case, figures in _cases(results):
        contenders = figures.get("contenders", {})
        for name in sorted(contenders, key=lambda name: (name not in ENGINE_CONTENDERS, name)):
            own: Mapping[str, Any] = contenders[name]
            gpu = own.get("gpu", {})
            is_noisy = bool(figures.get("noisy") or own.get("noisy")) or result.status == NOISY
            has_speedup = name == engine_contender(contenders) and not is_noisy
            line = fill(
                TimingLine,
                own,
                engine=result.variant,
                contender=name,
                case=case,
                dims=format_dims(figures.get("dims", {})) or "fixed",
                batch=figures.get("batch"),
                samples=own.get("count"),
                p50_interval_ms=tuple(own.get("p50_interval_ms") or ()) or None,
                speedup=figures.get("speedup") if has_speedup else None,
                noisy=is_noisy,
                gpu_p50_ms=gpu.get("p50_ms"),
                gpu_p99_ms=gpu.get("p99_ms"),
                queued_throughput_per_s=gpu.get("throughput_per_s"),
            )
            lines.append(line)
    return tuple(lines)


def bench_notes(results: Iterable[AnyResult]) -> tuple[str, ...]:
    """List notes on the benchmarks, each sentence once."""
    notes: list[str] = []
    for result in of_type(results, BenchResult):
        content = result.content
        notes += [f"Interleaving: {content['interleaving']}"] if "interleaving" in content else []
        notes += [f"CPU: {content['cpu']}"] if "cpu" in content else []
        for name, reason in content.get("left_out", {}).items():
            notes.append(f"{contender_title(name)} was not timed: {reason}")
        settings = {n: value for n, value in content.get("settings", {}).items() if n != "device"}
        text = plain(settings, between=" ")
        notes += [f"Settings of {result.variant}: {text}"] if settings else []
        for _, case, figures in _cases([result]):
            if gpu := figures.get("gpu"):
                notes.append(f"{result.target}, case {case}: {_gpu_state(gpu)}")
            for name, own in figures.get("contenders", {}).items():
                if own.get("noisy"):
                    place = f"{result.target}, {contender_title(name)}, case {case}"
                    notes.append(f"{place}: {own['noisy']}; it is compared with nothing")
    return tuple(dict.fromkeys(notes))


def _cases(results: Iterable[AnyResult]) -> Iterator[tuple[Result[BenchResult], str, BenchCase]]:
    for result in of_type(results, BenchResult):
        cases = result.content.get("cases", {})
        for case in sorted(cases, key=case_order):
            yield result, case, cases[case]


def _gpu_state(gpu: Mapping[str, Any]) -> str:
    """Describe clocks, power and throttling: smallest / median / largest reading."""
    parts = []
    for name, unit in _READINGS.items():
        values = [span[end] for end in ("min", "median", "max")] if (span := gpu.get(name)) else []
        title = name.rpartition("_")[0].replace("_", " ")
        parts += [f"{title} {' / '.join(f'{v:.0f}' for v in values)} {unit}"] if values else []
    causes = [f"{why} {percent(n, 0)}" for why, n in gpu.get("throttle", {}).items()]
    missing = gpu.get("missing")
    throttled = f"not known: {missing}" if missing else ", ".join(causes) or "no"
    return ", ".join((*parts, f"throttled: {throttled}"))
