"""The result file of the report stage.

Both renderings, Markdown and JSON, contain exactly this. None stands for a value that is not known.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from buildsys.onnx_graphs.result_types import AgreementFigures
from buildsys.report.results.engine_lines import (
    EngineLine,
    EngineProvenance,
    GateLine,
    GpuState,
    GpuTimingLine,
    LayerLine,
    Ranking,
    Recommendation,
    SearchLine,
    TimingLine,
)


@dataclass(frozen=True)
class BuildVerdict:
    """The verdict: passed, partial (some targets did not run), failed, stale."""

    status: str
    text: str


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
class TensorLine:
    """An input or output of the final graph."""

    role: str  # input | output
    name: str
    dtype: str
    shape: tuple[str, ...]


@dataclass(frozen=True)
class GraphSize:
    """The size of one ONNX file."""

    nodes: int | None
    size_bytes: int | None


@dataclass(frozen=True)
class OperatorCount:
    """Nodes of one operator before and after simplification."""

    operator: str
    exported: int | None
    simplified: int | None


@dataclass(frozen=True)
class ModuleCount:
    """PyTorch modules and their nodes."""

    modules: tuple[str, ...]
    count: int
    operators: tuple[str, ...]
    exported: int | None
    simplified: int | None


@dataclass(frozen=True)
class GraphStage:
    """The graph of one stage."""

    stage: str  # export, simplify, convert:fp16
    opsets: Mapping[str, int]
    weights: int | None  # elements of initializers that are weights
    initializers: int | None
    initializer_bytes: int | None
    macs: int | None  # at the opt sizes
    formula: Mapping[str, int]  # the dynamic dimension -> factor, and "" -> rest
    operator_macs: Mapping[str, int]
    not_counted: Mapping[str, int]  # operator -> nodes


@dataclass(frozen=True)
class GraphHistory:
    """The graph from PyTorch to the engines."""

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
class SurgeryLine:
    """One surgery step and its check."""

    when: str
    step: str
    nodes: int | None
    removed: Mapping[str, int]
    added: Mapping[str, int]
    against: str
    relative: float | None  # the worst of all outputs and cases
    basis: float | None  # error of a computed reference against the golden outputs


@dataclass(frozen=True)
class ConversionLine:
    """The graph in one precision."""

    precision: str
    status: str
    method: str
    initializers: Mapping[str, int]
    casts: int | None
    bytes_before: int | None
    bytes_after: int | None
    kept_fp32: tuple[str, ...]


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
class FailureLine:
    """The worst element of a failed comparison."""

    subject: str
    case: str
    output: str
    index: str
    actual: str
    expected: str
    problem: str


@dataclass(frozen=True)
class Check:
    """The comparisons of one target, with its limits."""

    target: str
    subject: str
    status: str
    limits: Mapping[str, float]
    comparisons: tuple[ComparisonLine, ...]
    failures: tuple[FailureLine, ...]
    idle: tuple[str, ...] = ()  # optimization profiles without a comparison
    agreement: Mapping[str, AgreementFigures] = field(default_factory=dict)  # output -> figures


@dataclass(frozen=True)
class OperatorLine:
    """The implementation of a custom operator in one place, or ""."""

    operator: str
    place: str
    implementation: str


@dataclass(frozen=True)
class CommandLine:
    """One figure of a command."""

    command: str
    figure: str
    value: float | None  # None: not finite
    unit: str
    interval: tuple[float, float] | None
    least: float | None  # limits
    most: float | None
    passed: bool | None  # None: without a limit


@dataclass(frozen=True)
class FileLine:
    """A file with its digest."""

    file: str
    sha256: str
    size_bytes: int | None


@dataclass(frozen=True)
class Provenance:
    """Everything needed to reproduce the build and compare the files."""

    manifest: Mapping[str, Any]
    manifest_sha256: str
    versions: Mapping[str, str]
    devices: tuple[str, ...]
    files: tuple[FileLine, ...]
    started: str


@dataclass(frozen=True)
class Report:
    """The report on the build of one model."""

    model: str
    description: str
    source: str
    weights: str
    verdict: BuildVerdict
    summary: tuple[TargetLine, ...]
    tensors: tuple[TensorLine, ...]
    dims: Mapping[str, str]
    graph: GraphHistory
    surgery: tuple[SurgeryLine, ...]
    custom_operators: tuple[OperatorLine, ...]
    conversions: tuple[ConversionLine, ...]
    checks: tuple[Check, ...]
    engines: tuple[EngineLine, ...]
    engine_provenance: tuple[EngineProvenance, ...]
    bench: tuple[TimingLine, ...]
    gpu_timings: tuple[GpuTimingLine, ...]
    gpu_states: tuple[GpuState, ...]
    bench_notes: tuple[str, ...]
    warnings: tuple[str, ...]
    provenance: Provenance
    notice: str = ""  # explains a report on a run that failed
    layers: tuple[LayerLine, ...] = ()  # the slowest first
    recommendation: Recommendation | None = None
    gates: tuple[GateLine, ...] = ()
    ranking: Ranking | None = None
    searches: tuple[SearchLine, ...] = ()
    commands: tuple[CommandLine, ...] = ()


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
