"""Say the sizes of kernels that a graph leaves to be read off the weights."""

from __future__ import annotations

from onnx import ModelProto, helper

from buildsys.onnx_graphs.onnx_file import operator_name

_CONVOLUTIONS = ("Conv", "ConvTranspose")


def state_kernel_shapes(model: ModelProto) -> None:
    """Give each convolution of the main graph its ``kernel_shape``, in place.

    Exporters write it, graphs from elsewhere may not: it is what the weights say. TensorRT 8.6 reads it off stored
    weights alone, not off those behind a quantizer ("misaligns with the input kernel shape").
    """
    shapes = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    for node in model.graph.node:
        if operator_name(node) not in _CONVOLUTIONS or node.input[1] not in shapes:
            continue
        if all(attribute.name != "kernel_shape" for attribute in node.attribute):
            node.attribute.append(
                helper.make_attribute("kernel_shape", list(shapes[node.input[1]])[2:])
            )
