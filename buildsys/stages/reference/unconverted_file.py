"""Comparison of an ONNX file in another opset with the file as it was."""

import numpy as np
from onnx import ModelProto

from buildsys.backends.onnxruntime.file_versions import versions_of
from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.manifest.default_limits import effective_limits
from buildsys.onnx_graphs.onnx_file import first_line
from buildsys.onnx_graphs.opset_six import broadcasts_along_an_axis
from buildsys.onnx_graphs.tensors import Case, Tensor, tensor_of
from buildsys.stages.common.golden_check import OutputRules, compare_case, wrong_outputs

_UNSET = {"rtol": None, "cosine": None}


def compare_unconverted(model: ModelProto, case: Case, title: str) -> str:
    """Compare a case of the converted file with ``model``, the file before; say how.

    ONNX Runtime runs it if it has the kernels, otherwise the reference evaluator of onnx.
    Raises: StageError: they differ.
    """
    what = f"{title}: the file of opset {versions_of(model).opset}"
    try:
        runtime, outputs = "ONNX Runtime", OrtGraph(model.SerializeToString()).run(case.inputs)
    except StageError:
        try:
            runtime, outputs = "onnx's reference evaluator", _evaluate(model, case)
        except Exception as error:  # operators raise all classes
            return f"{what} runs nowhere, so its conversion is not compared: {first_line(error)}"
    limits = effective_limits(_UNSET, "fp32", case.float_type)
    compared = compare_case(case, outputs, limits, OutputRules())
    for name, comparison in wrong_outputs(compared).items():
        sentence = comparison.sentence(runtime, "the converted file")
        raise StageError(
            f"{what} cannot be converted by onnx.version_converter: {name} changed: {sentence}",
            "export it again with opset 17",
        )
    return f"{what} gives the same outputs in {runtime} as the converted one"


def _evaluate(model: ModelProto, case: Case) -> dict[str, Tensor]:
    """Run the reference evaluator, which may return wider types than the file declares."""
    from onnx.reference import ReferenceEvaluator

    if versions_of(model).opset < 7 and broadcasts_along_an_axis(model):
        raise ValueError("onnx's reference evaluator broadcasts as numpy does")
    feeds = {name: tensor.typed() for name, tensor in case.inputs.items()}
    values = ReferenceEvaluator(model).run(None, feeds)
    names = [port.name for port in model.graph.output]
    return {
        name: tensor_of(np.asarray(value), case.outputs[name].dtype)
        for name, value in zip(names, values, strict=True)
    }
