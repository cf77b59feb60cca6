"""Lines of the report about engines: build, times, layers, errors, gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLine:
    """One engine; its three statuses come from three targets."""

    name: str
    backend: str
    precision: str
    built: str
    verified: str
    timed: str
    size_bytes: int | None
    build_seconds: float | None
    layers: int | None
    device: str
    sha256: str
    messages: tuple[str, ...]
    toolchain: str = ""  # its name and library versions
    executed: str = ""  # shares of its layers by type, which may differ from ``precision``


@dataclass(frozen=True)
class EngineProvenance:
    """The origin of one engine, title -> text."""

    engine: str
    lines: Mapping[str, str]


@dataclass(frozen=True)
class TimingLine:
    """Latencies of one contender in one case."""

    engine: str
    contender: str  # "engine" or a baseline such as "torch"
    case: str
    dims: str
    batch: int | None
    samples: int | None
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    mean_ms: float | None
    min_ms: float | None
    max_ms: float | None
    throughput_per_s: float | None
    speedup: float | None
    p50_interval_ms: tuple[float, ...] | None = None  # low and high, of the median
    noisy: bool = False


@dataclass(frozen=True)
class GpuTimingLine:
    """One contender in one case by the clocks of GPU and host."""

    engine: str
    case: str
    contender: str
    gpu_p50_ms: float | None
    gpu_p99_ms: float | None
    wall_p50_ms: float | None
    wall_p99_ms: float | None
    throughput_per_s: float | None
    queued_throughput_per_s: float | None
    device_memory_bytes: int | None  # of an execution context, without weights
    memory_taken_bytes: int | None  # difference in free device memory
    noisy: bool = False


@dataclass(frozen=True)
class GpuState:
    """The GPU during one case: smallest, median and largest reading, with units."""

    engine: str
    case: str
    readings: int | None
    sm_clock_mhz: str
    memory_clock_mhz: str
    power_w: str
    temperature_c: str
    throttle: str


@dataclass(frozen=True)
class LayerLine:
    """One layer of an engine with its share of the engine's time."""

    engine: str
    name: str
    kind: str
    precision: str  # "" if unknown
    time_ms: float | None
    share: float | None
    nodes: tuple[str, ...]  # of the ONNX graph
    provider: str = ""  # of ONNX Runtime, "" if it is the CPU's for all nodes


@dataclass(frozen=True)
class ErrorMargin:
    """The error closest to its limit, or furthest above it."""

    measure: str  # relative error, absolute error, cosine, top-1
    value: float | None  # NaN: not finite
    limit: float
    used: float  # share of the limit; above 1 it is exceeded
    place: str  # case and output


@dataclass(frozen=True)
class Recommendation:
    """The engine to ship, and the fastest contender of all."""

    engine: str  # "" if no engine can be shipped
    why: str  # sentences
    case: str = ""
    timing: TimingLine | None = None  # of the engine
    fastest: TimingLine | None = None  # an engine or a baseline
    margin: ErrorMargin | None = None  # of the engine


@dataclass(frozen=True)
class GateLine:
    """One gate of an engine; times in seconds, sizes in bytes."""

    engine: str
    metric: str
    status: str  # passed | failed | noisy | not comparable
    before: float | None
    after: float | None
    change: float | None  # relative; positive is worse
    interval: tuple[float, ...] | None  # of the change
    text: str
    tolerance: float | None = None  # of the change
    limit: float | None = None  # of ``after``
    confidence: float | None = None  # of the interval
