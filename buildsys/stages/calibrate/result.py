"""The result file of the calibrate stage."""

from buildsys.onnx_graphs.result_types import ResultHeader


class CalibrateResult(ResultHeader, total=False):
    """The measured ranges."""

    algorithm: str
    percentile: float
    batches: int
    tensors: int
    warnings: list[str]
