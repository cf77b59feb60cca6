"""The result file of the convert stage."""

from buildsys.onnx_graphs.result_types import AgreementFigures, CheckResult, ComparedCases


class ConvertResult(CheckResult, total=False):
    """The converted graph and its comparison with the golden outputs."""

    precision: str
    opset: int
    opset_before: int  # of a graph in an older opset
    initializers: dict[str, int]  # dtype -> count
    kept_reasons: dict[str, str]  # node -> reason
    bytes_before: int
    bytes_after: int
    cases: ComparedCases
    agreement: dict[str, AgreementFigures]  # by output
    warnings: list[str]
    # quantized graphs
    quantized: list[str]
    # graphs of ONNX Runtime only
    fused: dict[str, int]  # operator -> count
    kernels: dict[str, int]  # operator that computes with quantized weights -> count
