"""What benchmarks on a GPU measured, and in which state the GPU was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.checks import case_order
from buildsys.report.markdown.elements import code, escape, table
from buildsys.report.result_files import Result, mapping, number, whole
from buildsys.report.results.report import GpuState, GpuTiming

ENGINE, ENGINE_CUDA_GRAPH = "engine", "engine_cuda_graph"
_WORDS = {
    ENGINE_CUDA_GRAPH: "engine, CUDA graph",
    "torch_cuda_graph": "torch, CUDA graph",
    "torch_compile": "torch.compile",
    "onnxruntime": "ONNX Runtime",
}
_UNITS = {"sm_clock_mhz": "MHz", "memory_clock_mhz": "MHz", "power_w": "W", "temperature_c": "°C"}


def contender_words(name: str) -> str:
    """Return what people call a contender."""
    return _WORDS.get(name, name)


def own_contender(contenders: Mapping[str, Any]) -> str:
    """Return the contender that stands for the engine: launched kernel by kernel, unless only its graph was timed."""
    return (
        ENGINE if ENGINE in contenders or ENGINE_CUDA_GRAPH not in contenders else ENGINE_CUDA_GRAPH
    )


def in_order(contenders: Iterable[str]) -> list[str]:
    """Return contenders with those of the engine first."""
    return sorted(contenders, key=lambda name: (name not in (ENGINE, ENGINE_CUDA_GRAPH), name))


def gpu_timings(results: Iterable[Result]) -> tuple[GpuTiming, ...]:
    """Return a line per contender that was timed by the GPU's clock."""
    return tuple(line for result in results if result.stage == "bench" for line in _timings(result))


def gpu_states(results: Iterable[Result]) -> tuple[GpuState, ...]:
    """Return a line per case whose GPU was read meanwhile."""
    return tuple(line for result in results if result.stage == "bench" for line in _states(result))


def render(timings: Sequence[GpuTiming], states: Sequence[GpuState]) -> Iterator[str]:
    """Yield the lines of both as Markdown; none where nothing ran on a GPU."""
    if not timings:
        return
    columns = (
        "engine", "case", "contender", "GPU p50 (ms)>", "GPU p99 (ms)>", "wall p50 (ms)>", "wall p99 (ms)>",
        "throughput (/s)>", "queued (/s)>", "context memory>", "memory taken>",
    )  # fmt: skip
    yield from ("", "### On the GPU", "")
    yield from table(columns, [_row(line) for line in timings])
    yield from (
        "",
        "- GPU: between two events on the stream, inferences queued one behind the other. Wall: the host's clock, from"
        " launch to completion.",
        "- Queued: batch items per second where the GPU never waits for a result to be fetched.",
    )
    if states:
        heads = (
            "engine",
            "case",
            "SM clock>",
            "memory clock>",
            "power>",
            "temperature>",
            "readings>",
            "throttled",
        )
        yield from ("", "Least, middle and greatest reading during the measurement:", "")
        yield from table(heads, [_state_row(state) for state in states])


def _timings(result: Result) -> Iterator[GpuTiming]:
    cases = mapping(result.figures.get("cases"))
    for case in sorted(cases, key=case_order):
        contenders = mapping(mapping(cases[case]).get("contenders"))
        for name in in_order(contenders):
            own = mapping(contenders[name])
            if gpu := mapping(own.get("gpu")):
                yield _timing(result.variant, case, name, own, gpu)


def _timing(
    engine: str, case: str, name: str, own: Mapping[str, Any], gpu: Mapping[str, Any]
) -> GpuTiming:
    return GpuTiming(
        engine=engine,
        case=case,
        contender=name,
        gpu_p50_ms=number(gpu.get("p50_ms")),
        gpu_p99_ms=number(gpu.get("p99_ms")),
        wall_p50_ms=number(own.get("p50_ms")),
        wall_p99_ms=number(own.get("p99_ms")),
        throughput_per_s=number(own.get("throughput_per_s")),
        queued_throughput_per_s=number(gpu.get("throughput_per_s")),
        device_memory_bytes=whole(own.get("device_memory_bytes")),
        memory_taken_bytes=whole(own.get("memory_taken_bytes")),
    )


def _states(result: Result) -> Iterator[GpuState]:
    cases = mapping(result.figures.get("cases"))
    for case in sorted(cases, key=case_order):
        gpu = mapping(mapping(cases[case]).get("gpu"))
        if gpu:
            spans = {name: _span(mapping(gpu.get(name)), unit) for name, unit in _UNITS.items()}
            yield GpuState(
                result.variant, case, whole(gpu.get("readings")), throttle=_throttle(gpu), **spans
            )


def _span(span: Mapping[str, Any], unit: str) -> str:
    values = [number(span.get(name)) for name in ("min", "median", "max")]
    return (
        " / ".join(f"{value:.0f}" for value in values if value is not None) + f" {unit}"
        if span
        else ""
    )


def _throttle(gpu: Mapping[str, Any]) -> str:
    if gpu.get("missing"):
        return f"not known: {gpu['missing']}"
    shares = mapping(gpu.get("throttle"))
    return (
        ", ".join(f"{reason} {number(share) or 0:.0%}" for reason, share in shares.items()) or "no"
    )


def _row(line: GpuTiming) -> tuple[str, ...]:
    figures = (
        line.gpu_p50_ms, line.gpu_p99_ms, line.wall_p50_ms, line.wall_p99_ms, line.throughput_per_s,
        line.queued_throughput_per_s,
    )  # fmt: skip
    memory = (line.device_memory_bytes, line.memory_taken_bytes)
    return (
        code(line.engine),
        line.case,
        contender_words(line.contender),
        *(q.significant(figure) for figure in figures),
        *(q.size(size) for size in memory),
    )


def _state_row(state: GpuState) -> tuple[str, ...]:
    spans = (state.sm_clock_mhz, state.memory_clock_mhz, state.power_w, state.temperature_c)
    shown = tuple(span or q.NOTHING for span in spans)
    return (code(state.engine), state.case, *shown, q.count(state.readings), escape(state.throttle))
