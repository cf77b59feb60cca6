"""The report as data: everything that its Markdown and its JSON say, and nothing that they word differently."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """The one line on top: ``passed`` (all ran), ``partial`` (some could not run here) or ``failed``."""

    status: str
    text: str


@dataclass(frozen=True)
class TargetLine:
    """One target: what became of it, in one line."""

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
class TensorLine:
    """One input or output of the exported graph."""

    role: str  # input | output
    name: str
    dtype: str
    shape: tuple[str, ...]


@dataclass(frozen=True)
class GraphSize:
    """One ONNX file of the chain."""

    nodes: int | None
    size_bytes: int | None


@dataclass(frozen=True)
class OperatorCount:
    """Nodes of one operator before and after simplification; None where that graph is not known."""

    operator: str
    exported: int | None
    simplified: int | None


@dataclass(frozen=True)
class ModuleCount:
    """Modules of the PyTorch model against the nodes that they would become one by one."""

    modules: tuple[str, ...]
    count: int
    operators: tuple[str, ...]
    exported: int | None
    simplified: int | None


@dataclass(frozen=True)
class GraphStage:
    """The graph as one stage wrote it; None where a figure is not known."""

    stage: str  # export, simplify, convert:fp16
    opsets: Mapping[str, int]
    weights: int | None  # elements of initializers that are weights
    initializers: int | None
    initializer_bytes: int | None
    macs: int | None  # at the sizes that engines are built for
    formula: Mapping[str, int]  # of the same, by dynamic dimensions
    operator_macs: Mapping[str, int | None]
    not_counted: Mapping[str, int]  # operator -> nodes


@dataclass(frozen=True)
class Graph:
    """The graph on its way from PyTorch to the engines."""

    exporter: str
    opset: int | None
    ir_version: int | None
    parameters: int | None
    tool: str
    exported: GraphSize | None
    simplified: GraphSize | None
    operators: tuple[OperatorCount, ...]
    modules: tuple[ModuleCount, ...]
    folded: tuple[str, ...]  # sentences
    stages: tuple[GraphStage, ...]
    macs_at: Mapping[str, int]  # dynamic dimension -> size


@dataclass(frozen=True)
class SurgeryStep:
    """One step that changed a graph, and how its numbers were checked."""

    when: str
    step: str
    nodes: int | None
    removed: Mapping[str, int]
    added: Mapping[str, int]
    against: str
    relative: float | None  # the worst of all outputs and cases
    basis: (
        float | None
    )  # that of the graph before against the network, where golden outputs were taken from it


@dataclass(frozen=True)
class Conversion:
    """One precision that the graph was converted to."""

    precision: str
    status: str
    method: str
    initializers: Mapping[str, int]
    casts: int | None
    bytes_before: int | None
    bytes_after: int | None
    kept_fp32: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """One output of one case, compared with its reference."""

    # "exported", "simplified against exported", a step, a precision, or the name of an engine with its profile
    subject: str
    case: str
    output: str
    max_abs: float | None
    relative: float | None
    cosine: float | None
    top1: float | None
    passed: bool | None
    dims: str = ""  # sizes of the case, where they are known


@dataclass(frozen=True)
class Failure:
    """A value that was not as the reference has it."""

    subject: str
    case: str
    output: str
    index: str
    actual: str
    expected: str
    problem: str


@dataclass(frozen=True)
class Check:
    """One comparison target with its limits and all that it compared."""

    target: str
    subject: str
    status: str
    limits: Mapping[str, float]
    comparisons: tuple[Comparison, ...]
    failures: tuple[Failure, ...]
    idle: tuple[str, ...] = ()  # optimization profiles in which nothing was compared


@dataclass(frozen=True)
class OperatorLine:
    """What implements a custom operator at one place; an empty text: nothing does."""

    operator: str
    place: str
    implementation: str


@dataclass(frozen=True)
class EngineLine:
    """One engine: built, verified and timed are three statuses, and each stands for itself."""

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
    toolchain: str = ""  # its name and the versions of what it has


@dataclass(frozen=True)
class EngineProvenance:
    """What one engine was built with: what a line is about -> its text, in the order of the report."""

    engine: str
    lines: Mapping[str, str]


@dataclass(frozen=True)
class Timing:
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


@dataclass(frozen=True)
class GpuTiming:
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
    device_memory_bytes: int | None  # what a context needs beside the weights
    memory_taken_bytes: int | None  # by what was free before and after


@dataclass(frozen=True)
class GpuState:
    """The GPU while one case was timed: least, middle and greatest reading, as text with a unit."""

    engine: str
    case: str
    readings: int | None
    sm_clock_mhz: str
    memory_clock_mhz: str
    power_w: str
    temperature_c: str
    throttle: str


@dataclass(frozen=True)
class FileLine:
    """A file of the chain with its digest."""

    file: str
    sha256: str
    size_bytes: int | None


@dataclass(frozen=True)
class Provenance:
    """What it takes to make the same again, and to see that it is the same."""

    manifest: Mapping[str, Any]
    manifest_sha256: str
    versions: Mapping[str, str]
    devices: tuple[str, ...]
    files: tuple[FileLine, ...]
    started: str


@dataclass(frozen=True)
class Report:
    """All that is known about one model's build."""

    model: str
    description: str
    source: str
    weights: str
    verdict: Verdict
    summary: tuple[TargetLine, ...]
    tensors: tuple[TensorLine, ...]
    dims: Mapping[str, str]
    graph: Graph
    surgery: tuple[SurgeryStep, ...]
    custom_operators: tuple[OperatorLine, ...]
    conversions: tuple[Conversion, ...]
    checks: tuple[Check, ...]
    engines: tuple[EngineLine, ...]
    engine_provenance: tuple[EngineProvenance, ...]
    bench: tuple[Timing, ...]
    gpu_timings: tuple[GpuTiming, ...]
    gpu_states: tuple[GpuState, ...]
    bench_notes: tuple[str, ...]
    warnings: tuple[str, ...]
    provenance: Provenance
    notice: str = ""  # why this is not the report of a pass


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON values. NaN and infinities become strings: JSON has no numbers for them."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(report))
    del plain["model"]  # part of every result's header
    if not report.notice:
        del plain["notice"]
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
