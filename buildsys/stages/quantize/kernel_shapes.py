"""Explicit ``kernel_shape`` attributes of convolutions."""

from __future__ import annotations

from onnx import ModelProto, helper

from buildsys.onnx_graphs.onnx_file import operator_name

_CONVOLUTIONS = ("Conv", "ConvTranspose")


def set_kernel_shapes(model: ModelProto) -> None:
    """Set the ``kernel_shape`` of each convolution of the main graph, in place.

    Other graphs than exported ones may leave it to the weights' shape. TensorRT 8.6 infers it from
    stored weights, but not through a quantizer ("misaligns with the input kernel shape").
    """
    shapes = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    for node in model.graph.node:
        if operator_name(node) not in _CONVOLUTIONS or node.input[1] not in shapes:
            continue
        if all(attribute.name != "kernel_shape" for attribute in node.attribute):
            node.attribute.append(
                helper.make_attribute("kernel_shape", list(shapes[node.input[1]])[2:])
            )
