"""Graphs without local functions, for parsers that do not know them. Needs onnx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.inliner import inline_local_functions

_NUMBERS = {
    "value_int": np.int64, "value_ints": np.int64, "value_float": np.float32,
    "value_floats": np.float32,
}  # fmt: skip


def inline_functions(source: Path, copy: Path) -> None:
    """Write ``source`` with its functions inlined to ``copy``; external weights stay outside.

    Functions for any type often have CastLike, which these parsers do not know either, and numbers
    as constants, of which TensorRT 8.6 reads integers as 0.
    """
    model = inline_all(onnx.load(str(source), load_external_data=False))
    graph = shape_inference.infer_shapes(model).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    for node in model.graph.node:
        if node.op_type == "CastLike" and not node.domain and types.get(node.input[1]):
            node.op_type = "Cast"
            node.attribute.append(helper.make_attribute("to", types[node.input.pop()]))
        elif node.op_type == "Constant" and not node.domain:
            _hold_a_tensor(node)
    onnx.save(model, str(copy))


def inline_all(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inline all local functions of a model.

    Those of another opset are converted to the model's.
    """
    inlined: onnx.ModelProto = inline_local_functions(model, convert_version=True)
    return inlined


def _hold_a_tensor(constant: onnx.NodeProto) -> None:
    """Replace the number or numbers of a Constant by a tensor."""
    (attribute,) = constant.attribute
    if attribute.name in _NUMBERS:
        values = np.array(helper.get_attribute_value(attribute), _NUMBERS[attribute.name])
        attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))
