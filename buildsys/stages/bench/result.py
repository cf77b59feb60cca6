"""The result file of the bench stage."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from buildsys.manifest.default_limits import STEADY_INTERVAL
from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.stages.engine.result import SlowLayer
from buildsys.system.typed_dict import TypedDict

ENGINE_CONTENDERS = ENGINE, ENGINE_CUDA_GRAPH = "engine", "engine_cuda_graph"
COLD_TIMES = ("imports_ms", "load_ms", "first_call_ms")


class Latencies(TypedDict, total=False):
    """Latencies of one contender by one clock."""

    samples_ms: list[float]
    count: int
    blocks: int  # turns among the contenders
    mean_ms: float
    p50_ms: float
    p50_interval_ms: list[float] | None  # 95 %, over medians of blocks within this run
    p90_ms: float
    p95_ms: float
    p99_ms: float
    min_ms: float
    max_ms: float
    variation: float  # standard deviation over mean
    throughput_per_s: float | None  # batch items


class ContenderResult(Latencies, total=False):
    """One contender by the host's clock; ``gpu`` by the GPU's clock."""

    gpu: Latencies
    device_memory_bytes: int  # an execution context without weights
    memory_taken_bytes: int  # difference in free device memory
    noisy: str  # why the median is not steady: it is compared with nothing


class BenchCase(TypedDict, total=False):
    """One shape case."""

    dims: dict[str, int]
    batch: int
    contenders: dict[str, ContenderResult]
    speedup: float | None  # over eager PyTorch; None if one of the medians is not steady
    gpu: dict[str, Any]  # its state: spans of readings, and shares of throttled ones
    cut_to_s: float  # of each contender, less than `duration`: the budget ended
    attempts: int  # measurements until one was steady; the figures are of the steadiest
    others_share: float | None  # the processors' time used by other processes
    noisy: list[str]  # reasons to doubt the figures


class ColdStart(TypedDict, total=False):
    """Fresh processes that load the engine, with a value of each; bytes are of resident memory."""

    imports_ms: list[float]  # from the start of the process until the libraries are imported
    load_ms: list[float]
    first_call_ms: list[float]
    warmup_calls: list[int]  # before the first as fast as later ones
    warmup_ms: list[float]
    imports_bytes: list[int]
    loaded_bytes: list[int]
    called_bytes: list[int]  # after the first call
    peak_bytes: list[int]  # until then
    gpu_imports_bytes: list[int]  # in use on the GPU
    gpu_loaded_bytes: list[int]
    gpu_called_bytes: list[int]
    noisy: dict[str, str]  # time -> why its median is not steady
    problem: str  # why the engine could not be loaded


class MachineSpeed(TypedDict, total=False):
    """The fastest products and copies on the engine's device, right after the timing."""

    threads: int
    macs_per_s: float  # multiply-accumulates of a large matrix product
    macs_type: str  # float32, tf32, float16, bfloat16
    bytes_per_s: float  # read and written by copies
    cache_bytes: int  # of the last level
    missing: list[str]  # why a figure is


class BenchResult(ResultHeader, total=False):
    """Latencies of an engine and its baselines."""

    cases: dict[str, BenchCase]
    interleaving: str
    cpu: str
    load: dict[str, Any]  # of the machine
    noisy: list[str]
    settings: dict[str, Any]
    cold_start: ColdStart
    machine: MachineSpeed
    left_out: dict[str, str]  # baseline -> reason
    slowest_layers: list[SlowLayer]  # only ONNX Runtime; measured after all contenders


def median_doubt(
    p50_ms: float, ends: Sequence[float] | None, limit: float = STEADY_INTERVAL
) -> str:
    """Say why a median is not steady, "" if it is; only steady ones are compared.

    ``ends`` are those of its 95 % interval, ``limit`` their largest distance relative to it.
    """
    if ends is None or len(ends) != 2:
        return "it was timed too briefly to know the interval of its median"
    spread = max(ends[1] - p50_ms, p50_ms - ends[0])
    if spread <= limit * p50_ms:
        return ""
    percent = 100 * spread / p50_ms if p50_ms else 0.0
    within = f"{percent:.{0 if percent >= 9.95 else 1}f} %" if p50_ms else f"{spread:.2g} ms"
    return f"the median is only known within ±{within}"


def is_recorded_noisy(figures: Mapping[str, Any]) -> bool:
    """Tell if the history's figures of a benchmark have a latency that is not steady."""
    if figures.get("noisy"):
        return True
    match figures.get("latency_p50_ms"), figures.get("latency_interval_ms"):
        case float(p50_ms), [float(low), float(high)]:
            return bool(median_doubt(p50_ms, (low, high)))
        case p50_ms, _:
            return p50_ms is not None


def engine_contender(contenders: Container[str]) -> str:
    """Choose the engine's contender, without CUDA graph if possible."""
    only_graph = ENGINE not in contenders and ENGINE_CUDA_GRAPH in contenders
    return ENGINE_CUDA_GRAPH if only_graph else ENGINE


def headline(result: BenchResult) -> tuple[str, BenchCase, str]:
    """Find the main case and the engine's contender in it."""
    cases = result.get("cases", {})
    name = "opt" if "opt" in cases else next(iter(cases), "")
    case = cases.get(name, {})
    return name, case, engine_contender(case.get("contenders", {}))


def recorded_interval(latencies: Mapping[str, Any]) -> tuple[float, float] | None:
    """Read the interval of a median, None if it was not measured."""
    ends = latencies.get("p50_interval_ms")
    return (ends[0], ends[1]) if ends else None
