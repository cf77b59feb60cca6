"""The result file of the reference stage."""

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.typed_dict import TypedDict


class GoldenTensor(TypedDict):
    """Type and shape of one golden tensor."""

    dtype: str
    shape: list[int]


class GoldenCase(TypedDict):
    """One shape case."""

    dims: dict[str, int]
    inputs: dict[str, GoldenTensor]
    outputs: dict[str, GoldenTensor]


class ReferenceResult(ResultHeader, total=False):
    """The golden inputs and outputs of every shape case and further case."""

    cases: dict[str, GoldenCase]
    weights: str  # their origin, in words
    warnings: list[str]  # further cases without golden outputs
