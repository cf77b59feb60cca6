"""Opset upgrade to a version with the required types."""

from __future__ import annotations

from onnx import ModelProto, version_converter

from buildsys.onnx_graphs.onnx_file import ONE_MESSAGE_LIMIT, first_line, opsets


def raise_opset(model: ModelProto, version: int, ir_version: int) -> tuple[ModelProto, str]:
    """Return the model at ``version`` or above, or unchanged with the reason."""
    if opsets(model).get("ai.onnx", 1) >= version:
        return model, ""
    if len(model.functions) > 0:
        return model, "onnx.version_converter drops local functions"
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > ONE_MESSAGE_LIMIT:
        return model, "onnx.version_converter takes graphs below 2 GB"
    try:
        raised = version_converter.convert_version(model, version)
    except (version_converter.ConvertError, RuntimeError, ValueError) as error:
        return model, first_line(error)
    raised.ir_version = max(raised.ir_version, ir_version)
    return raised, ""
