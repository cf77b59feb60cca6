"""The result file of the validate stage."""

from __future__ import annotations

from buildsys.onnx_graphs.result_types import CheckResult, ComparedCases
from buildsys.system.typed_dict import TypedDict


class WorstOutput(TypedDict):
    """The output with the largest relative error."""

    graph: str
    case: str
    output: str
    relative: float | None


class ValidateResult(CheckResult, total=False):
    """The exported and the simplified graph compared with the golden outputs."""

    graphs: dict[str, ComparedCases]
    dims: dict[str, dict[str, int]]  # per case
    worst: WorstOutput | None
    warnings: list[str]  # further cases that are not compared
