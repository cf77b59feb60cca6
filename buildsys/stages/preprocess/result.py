"""The result file of the preprocess stage."""

from buildsys.onnx_graphs.result_types import ResultHeader


class PreprocessResult(ResultHeader, total=False):
    """Preprocessed images compared with torchvision's, or a graph that takes raw images."""

    sizes: list[list[int]]  # height and width
    largest_step: float  # in steps of pixel values
    differing: float  # share of the values
    nodes: int  # added to the graph
