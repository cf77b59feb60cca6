"""The result file of the convert stage."""

from __future__ import annotations

from buildsys.onnx_graphs.result_types import (
    AgreementFigures,
    CheckResult,
    ComparedCases,
    OutputComparison,
)
from buildsys.system.typed_dict import TypedDict


class FlushedWeights(TypedDict):
    """Weights flushed to zero."""

    values: int
    of: int


class Overflow(TypedDict):
    """The first node with an output beyond the precision's range."""

    node: str
    tensor: str


class LayerLoss(TypedDict):
    """The relative error of a quantized node's output, and of its input."""

    node: str
    operator: str
    error: float
    error_before: float


class ConvertResult(CheckResult, total=False):
    """The converted graph and its comparison with the golden outputs."""

    precision: str
    tool: str  # only for quantized graphs
    method: str
    opset: int
    initializers: dict[str, int]  # dtype -> count
    casts: int
    kept_fp32: list[str]
    kept_reasons: dict[str, str]  # node -> reason
    bytes_before: int
    bytes_after: int
    cases: ComparedCases
    agreement: dict[str, AgreementFigures]  # by output
    warnings: list[str]
    # typed graphs
    converted: int
    flushed_to_zero: FlushedWeights
    overflow: Overflow | None
    # quantized graphs
    algorithm: str
    quantized: list[str]
    quantizers: int
    dequantizers: int
    largest_losses: list[LayerLoss]
    with_minmax: OutputComparison | None
    # graphs of ONNX Runtime only
    fused: dict[str, int]  # operator -> count
    kernels: dict[str, int]  # operator that computes with quantized weights -> count
