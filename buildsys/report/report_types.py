"""Typed report of one model, as in report.json. None stands for a value that is not known."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_origin

from buildsys.onnx_graphs.result_types import AgreementFigures, CheckFailure
from buildsys.report.result_files import adapter
from buildsys.system.files import MAX_RESULT_BYTES, read_limited

Line = TypeVar("Line")
LATENCY, THROUGHPUT, SIZE, ERROR = MEASURES = ("latency", "throughput", "size", "error")


@dataclass(frozen=True)
class Accuracy:
    """The metric of an engine on data, and its loss with a 95 % interval."""

    title: str  # of the metric
    value: float
    original: float  # of the original model
    loss: float  # of a share absolute, else relative to the original; a gain is negative
    low: float
    high: float
    is_share: bool = False
    higher_is_better: bool = True
    samples: int | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """The values at both ends of the loss."""
        unit = 1.0 if self.is_share else abs(self.original)
        unit = unit if self.higher_is_better else -unit
        return self.original - unit * self.low, self.original - unit * self.high

    def meets(self, limit: float) -> bool:
        """Compare the value with the worst permitted one."""
        return self.value >= limit if self.higher_is_better else self.value <= limit


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
    executed: str = ""  # shares of its layers by type, which may differ from ``precision``
    origin: Mapping[str, str] = field(default_factory=dict)  # title -> text, if it was built
    accuracy: Accuracy | None = None


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
    p99_ms: float | None
    throughput_per_s: float | None
    p50_interval_ms: tuple[float, ...] | None = None  # low and high, of the median
    noisy: bool = False
    gpu_p50_ms: float | None = None  # by the GPU's clock
    gpu_p99_ms: float | None = None
    queued_throughput_per_s: float | None = None  # if the GPU never waits for the host
    device_memory_bytes: int | None = None  # an execution context without weights
    memory_taken_bytes: int | None = None  # difference in free device memory
    macs: int | None = None  # of an engine in the main case
    bytes: int | None = None  # of its weights, inputs and outputs
    of_peak: float | None = None  # shares of what its device can do
    of_bandwidth: float | None = None
    bound: str = ""  # compute | memory | unknown


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
    macs: int | None = None
    bytes: int | None = None  # read from and written for other layers
    of_bound: float | None = None  # share of its time that its bound needs at least
    bound: str = ""  # compute | memory | unknown


@dataclass(frozen=True)
class ErrorMargin:
    """The error closest to its limit, or furthest above it."""

    measure: str  # relative error, absolute error, cosine, top-1
    value: float | None  # NaN: not finite
    limit: float
    used: float  # share of the limit; above 1 it is exceeded
    place: str  # case and output


class CurvePoint(NamedTuple):
    """A place on a curve with the interval of its height."""

    x: float
    y: float
    interval: tuple[float, ...]
    title: str


@dataclass(frozen=True)
class Chart:
    """Curves by name, over a horizontal axis from 0, with a limit of their height."""

    title: str
    unit: str  # of the height
    limit: float
    curves: Mapping[str, tuple[CurvePoint, ...]]


@dataclass(frozen=True)
class Table:
    """A table of plain texts; columns ending in ``>`` are aligned right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    images: tuple[str, ...] = ()  # of the rows: files of the project, or other names
    charts: tuple[Chart, ...] = ()


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
    accuracy: Accuracy | None = None


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
    min_accuracy: float | None = None  # the worst permitted metric on data

    @property
    def tied(self) -> tuple[RankedEngine, ...]:
        """The engines not distinguishable from the first."""
        return tuple(line for line in self.ranked[1:] if line.rank == self.ranked[0].rank)


@dataclass(frozen=True)
class BuildVerdict:
    """The verdict: passed, partial (some targets did not run), failed, stale."""

    status: str
    text: str
    doubts: str = ""  # a part of ``text``


@dataclass(frozen=True)
class TargetLine:
    """The status of one target."""

    target: str
    stage: str
    variant: str
    status: str
    seconds: float | None
    outcome: str
    reason: str
    hint: str
    file: str
    log: str


@dataclass(frozen=True)
class ComparisonLine:
    """One output of one case compared with its reference."""

    subject: str  # a graph, a surgery step, a precision, or an engine with its profile
    case: str
    output: str
    max_abs: float | None
    relative: float | None
    cosine: float | None
    top1: float | None
    passed: bool | None
    dims: str = ""  # sizes of the case
    policy: str = ""  # the manifest's ``compare``; empty: auto
    note: str = ""  # a permitted difference, or errors that the limits cannot see
    uninformative: str = ""  # why equality proves nothing


@dataclass(frozen=True)
class Check:
    """The comparisons of one target, with its limits."""

    target: str
    subject: str
    status: str
    limits: Mapping[str, float]
    comparisons: tuple[ComparisonLine, ...]
    failures: tuple[CheckFailure, ...]
    idle: tuple[str, ...] = ()  # optimization profiles without a comparison
    agreement: Mapping[str, AgreementFigures] = field(default_factory=dict)  # output -> figures


@dataclass(frozen=True)
class Provenance:
    """Everything needed to reproduce the build."""

    manifest: Mapping[str, Any]
    manifest_sha256: str
    versions: Mapping[str, str]
    started: str


@dataclass(frozen=True)
class Report:
    """The report on the build of one model."""

    model: str
    description: str
    source: str
    verdict: BuildVerdict
    summary: tuple[TargetLine, ...]
    checks: tuple[Check, ...]
    engines: tuple[EngineLine, ...]
    bench: tuple[TimingLine, ...]
    bench_notes: tuple[str, ...]
    warnings: tuple[str, ...]
    provenance: Provenance
    notice: str = ""  # explains a report on a run that failed
    layers: tuple[LayerLine, ...] = ()  # the slowest first
    recommendation: Recommendation | None = None
    ranking: Ranking | None = None
    tables: tuple[Table, ...] = ()  # figures of stages, such as gates
    graph_facts: Mapping[str, str] = field(default_factory=dict)  # title -> text
    graph_tables: tuple[Table, ...] = ()


Problems = list[tuple[tuple[str, str], list[tuple[str, list[TargetLine]]]]]


def problems(lines: Iterable[TargetLine]) -> Problems:
    """Group targets with a reason by status and hint, then by reason; failures first."""
    groups: dict[tuple[str, str], dict[str, list[TargetLine]]] = {}
    for line in lines:
        if line.reason:
            reasons = groups.setdefault((line.status, line.hint), {})
            reasons.setdefault(line.reason, []).append(line)
    ordered = sorted(groups.items(), key=lambda group: group[0][0] != "failed")
    return [(key, [*reasons.items()]) for key, reasons in ordered]


def fill(kind: type[Line], values: Mapping[str, Any], /, **own: Any) -> Line:
    """Fill a line with the values of its names; what is not known is empty."""
    for entry in dataclasses.fields(kind):  # type: ignore[arg-type]
        if entry.name in own:
            continue
        value = values.get(entry.name)
        if value is not None:
            own[entry.name] = value
        elif entry.default is MISSING and entry.default_factory is MISSING:
            is_mapping = get_origin(entry.type) is Mapping
            own[entry.name] = "" if entry.type is str else {} if is_mapping else None
    return kind(**own)


def read_report(path: Path) -> Report | None:
    """Read the report in a result file, None if missing or damaged."""
    try:
        report: Report = adapter(Report).validate_json(read_limited(path, MAX_RESULT_BYTES))
    except (OSError, ValueError):
        return None
    return report


def load_types() -> None:
    """Build the schema of reports: it takes longer than reading one."""
    adapter(Report)


def as_json(report: Report) -> dict[str, Any]:
    """Convert the report to JSON values; NaN and infinities become text."""
    plain: dict[str, Any] = plain_values(report)
    del plain["model"]  # part of every result's header
    if not report.notice:
        del plain["notice"]
    return plain


def plain_values(value: Any) -> Any:
    """Convert data to JSON values; NaN and infinities become text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain_values(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_values(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
