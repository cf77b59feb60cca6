"""The result file of the export stage."""

from buildsys.onnx_graphs.result_types import ResultHeader, TensorPort


class ExportResult(ResultHeader, total=False):
    """The exported graph and its origin."""

    exporter: str  # torchscript | dynamo | none (a given ONNX file)
    weights: str  # their origin, in words
    parameters: int
    opset: int
    ir_version: int
    producer: str
    inputs: list[TensorPort]
    outputs: list[TensorPort]
    nodes: int
    operators: dict[str, int]
    bytes: int
    sha256: str
    warnings: list[str]
