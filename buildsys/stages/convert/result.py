"""The result file of the convert stage."""

from __future__ import annotations

from buildsys.onnx_graphs.result_types import (
    AgreementFigures,
    CheckResult,
    ComparedCases,
)
from buildsys.system.typed_dict import TypedDict


class Overflow(TypedDict):
    """The first node with an output beyond the precision's range."""

    node: str
    tensor: str


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
    overflow: Overflow | None
    # quantized graphs
    algorithm: str
    quantized: list[str]
    # graphs of ONNX Runtime only
    fused: dict[str, int]  # operator -> count
    kernels: dict[str, int]  # operator that computes with quantized weights -> count
