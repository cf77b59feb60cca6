"""The result file of the surgery stage."""

from buildsys.onnx_graphs.result_types import (
    CheckFailure,
    ComparedCases,
    GraphSummary,
    ResultHeader,
    TensorPort,
)
from buildsys.system.typed_dict import TypedDict


class SurgeryStep(TypedDict, total=False):
    """One step and its check."""

    step: str
    against: str  # the reference of the comparison, in words
    cases: ComparedCases
    failures: list[CheckFailure]


class SurgeryResult(ResultHeader, total=False):
    """The graph before and after the steps."""

    before: GraphSummary
    after: GraphSummary
    steps: list[SurgeryStep]
    inputs: list[TensorPort]
    outputs: list[TensorPort]
    warnings: list[str]
