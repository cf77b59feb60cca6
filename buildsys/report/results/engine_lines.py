"""Lines of the report about engines: build, times, layers, errors, gates, ranking, searches.

None stands for a value that is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LATENCY, THROUGHPUT, SIZE, ERROR = MEASURES = ("latency", "throughput", "size", "error")


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
    device_memory_bytes: int | None  # an execution context without weights
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
    nodes: tuple[str, ...]  # names in the ONNX graph
    provider: str = ""  # "" if all nodes run on the CPU


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
    timing: TimingLine | None = None
    fastest: TimingLine | None = None  # an engine or a baseline
    margin: ErrorMargin | None = None


@dataclass(frozen=True)
class GateLine:
    """One gate of an engine; times in seconds, sizes in bytes."""

    engine: str
    metric: str
    status: str  # passed | failed | noisy | not comparable
    before: float | None
    after: float | None
    change: float | None  # relative; positive is worse
    interval: tuple[float, ...] | None
    text: str
    tolerance: float | None = None
    limit: float | None = None  # the limit of ``after``
    confidence: float | None = None


@dataclass(frozen=True)
class RankedEngine:
    """A verified engine with its figures in the case of the ranking."""

    engine: str
    backend: str
    precision: str
    rank: int  # shared by engines that are not distinguishable
    p50_ms: float | None
    p50_interval_ms: tuple[float, ...] | None
    throughput_per_s: float | None
    size_bytes: int | None
    error: float | None  # the largest relative error in `verify`
    contender: str = ""  # engine or engine_cuda_graph; "" without a benchmark
    is_optimal: bool = False  # Pareto-optimal in latency, error and size


@dataclass(frozen=True)
class UnrankedEngine:
    """An engine without a place, and the reason."""

    engine: str
    status: str  # as the deciding target ended
    reason: str


@dataclass(frozen=True)
class Ranking:
    """The engines of a model, the one to ship first."""

    by: str  # latency | throughput | size | error
    case: str = ""  # "" if no benchmark counts
    dims: str = ""
    ranked: tuple[RankedEngine, ...] = ()
    unranked: tuple[UnrankedEngine, ...] = ()
    within: float | None = None  # the largest permitted relative error
    verified: int = 0  # engines, ranked or not
    other_cases: Mapping[str, str] = field(default_factory=dict)  # case -> its first, if another

    @property
    def tied(self) -> tuple[RankedEngine, ...]:
        """The engines not distinguishable from the first."""
        return tuple(line for line in self.ranked[1:] if line.rank == self.ranked[0].rank)


@dataclass(frozen=True)
class ComparedEngine:
    """An engine of the searched backend and its latency."""

    engine: str
    precision: str
    p50_ms: float | None
    noisy: bool = False


@dataclass(frozen=True)
class SearchLine:
    """One search, with the engines that it served and their rivals."""

    variant: str  # "auto-int8"
    precision: str
    status: str
    kept: tuple[tuple[str, ...], ...]  # name and operator of the nodes in fp32
    candidates: int | None
    is_fp32: bool
    is_smallest: bool
    trials: int | None
    error_without: float | None
    error_with: float | None
    rtol: float | None  # the limit of the search
    macs_low: float | None  # share of the multiply-accumulates in the precision
    engines: tuple[ComparedEngine, ...] = ()
