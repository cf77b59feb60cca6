"""Graphs in a newer opset, by onnx.version_converter."""

from onnx import ModelProto, version_converter

from buildsys.onnx_graphs.onnx_file import ONE_MESSAGE_LIMIT, first_line, opsets


def raise_opset(model: ModelProto, version: int, ir_version: int) -> tuple[ModelProto, str]:
    """Convert the model to ``version`` or above; give the reason if it stays."""
    if opsets(model).get("ai.onnx", 1) >= version:
        return model, ""
    model, problem = convert_opset(model, version)
    if not problem:
        model.ir_version = max(model.ir_version, ir_version)
    return model, problem


def convert_opset(model: ModelProto, version: int) -> tuple[ModelProto, str]:
    """Convert the model to an older or newer opset; give the reason if it stays."""
    if len(model.functions) > 0:
        return model, "onnx.version_converter drops local functions"
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > ONE_MESSAGE_LIMIT:
        return model, "onnx.version_converter takes graphs below 2 GB"
    try:
        converted = version_converter.convert_version(model, version)
    except (version_converter.ConvertError, RuntimeError, ValueError) as error:
        return model, first_line(error)
    typed = [value for value in converted.graph.value_info if value.type.tensor_type.elem_type]
    del converted.graph.value_info[:]  # some without a type, which ONNX Runtime refuses
    converted.graph.value_info.extend(typed)
    return converted, ""
