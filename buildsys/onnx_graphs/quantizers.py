"""Quantizers that a graph has before any conversion: a check, and a guard against others."""

import math
from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import nodes_of

_INTEGER_ONLY = ("ConvInteger", "MatMulInteger", "FakeQuantize", "QGemm")
QUANTIZE_PAIR = ("QuantizeLinear", "DequantizeLinear")
_SCALES = {  # operator -> inputs with scales, each before its zero point
    "QuantizeLinear": (1,), "DequantizeLinear": (1,), "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6), "QLinearAdd": (1, 4, 6), "QLinearMul": (1, 4, 6), "QGemm": (1, 4),
}  # fmt: skip


def quantizers(model: ModelProto) -> list[NodeProto]:
    """List the nodes that quantize, dequantize or compute with integers instead of floats."""
    return [
        node
        for node in nodes_of(model)
        if "QuantizeLinear" in node.op_type  # also Dynamic
        or node.op_type.startswith(("DequantizeLinear", "QLinear"))
        or node.op_type in _INTEGER_ONLY
    ]


def refuse_quantized(model: ModelProto, precision: str) -> None:
    """Refuse another conversion of a quantized graph. Raises: StageError."""
    if nodes := quantizers(model):
        raise StageError(
            f"the network is quantized already ({len(nodes)} nodes such as {_title(nodes[0])}), so"
            f" it is not converted to {precision}",
            "set quantize: {tool: source} and precision: int8, which take it as it is, or use the"
            " network before its quantization",
        )


def check_scales(model: ModelProto, title: str) -> None:
    """Check the scales of the main graph. Raises: StageError: names the first wrong one."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            tensors[node.output[0]] = node.attribute[0].t
    written = {*tensors, *(port.name for port in graph.input)}
    written |= {name for node in graph.node for name in node.output}
    for node in graph.node:
        for index in _SCALES.get(node.op_type, ()):
            name = node.input[index] if index < len(node.input) else ""
            problem = "" if name in written - {""} else f"no scale: nothing writes {name!r}"
            if name in tensors:
                problem = _scale_problem(node, index, tensors)
            if problem:
                raise StageError(
                    f"the quantizer {_title(node)} of {title} has {problem}",
                    "calibrate it on real data, and export the network again",
                )


def _scale_problem(node: NodeProto, index: int, tensors: Mapping[str, TensorProto]) -> str:
    """Describe what is wrong with the values or the shape of a scale."""
    name, data = node.input[index], tensors.get(node.input[0])
    scale = tensors[name]
    if scale.data_location != TensorProto.EXTERNAL:
        values = numpy_helper.to_array(scale).astype(np.float64)
        if wrong := [value for value in values.ravel() if not 0 < value < np.inf]:
            return f"the scale {wrong[0]:g} in {name}, and scales are positive"
    if node.op_type in QUANTIZE_PAIR and len(scale.dims) == 1 and scale.dims[0] != 1 and data:
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        if not -len(data.dims) <= axis < len(data.dims) or data.dims[axis] != scale.dims[0]:
            shape = list(data.dims)
            return f"{scale.dims[0]} scales in {name} along axis {axis} of the shape {shape}"
    zero = tensors.get(node.input[index + 1]) if index + 1 < len(node.input) else None
    if zero is not None and math.prod(zero.dims) != math.prod(scale.dims):
        return f"a scale of the shape {[*scale.dims]} and a zero point of {[*zero.dims]}"
    return ""


def _title(node: NodeProto) -> str:
    return f"{node.op_type} {node.name or node.output[0]}"
