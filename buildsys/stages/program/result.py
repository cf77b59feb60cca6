"""The result file of the program stage."""

from buildsys.onnx_graphs.result_types import ResultHeader, TensorPort


class ProgramResult(ResultHeader, total=False):
    """The captured program and its origin."""

    weights: str  # their origin, in words
    parameters: int
    inputs: list[TensorPort]
    outputs: list[TensorPort]
    operators: dict[str, int]  # ATen operator -> calls
    bytes: int
    sha256: str
    warnings: list[str]
