"""The result file of the validate stage."""

from buildsys.onnx_graphs.result_types import CheckResult, ComparedCases


class ValidateResult(CheckResult, total=False):
    """The exported and the simplified graph compared with the golden outputs."""

    graphs: dict[str, ComparedCases]
    dims: dict[str, dict[str, int]]  # per case
    warnings: list[str]  # inputs and cases that are compared in part
