"""The result file of the predict stage."""

from buildsys.onnx_graphs.result_types import ResultHeader


class PredictResult(ResultHeader, total=False):
    """The metric of the original model."""

    title: str  # of the metric
    is_share: bool
    value: float
    samples: int
