"""Graphs without local functions, for parsers that do not know them. Needs onnx."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper, shape_inference
from onnx.inliner import inline_local_functions


def inline_functions(source: Path, copy: Path) -> None:
    """Write ``source`` with its functions inlined to ``copy``; external weights stay outside.

    Functions for any type often have CastLike, which these parsers do not know either.
    """
    model = inline_local_functions(onnx.load(str(source), load_external_data=False))
    graph = shape_inference.infer_shapes(model).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    for node in model.graph.node:
        if node.op_type == "CastLike" and not node.domain and types.get(node.input[1]):
            node.op_type = "Cast"
            node.attribute.append(helper.make_attribute("to", types[node.input.pop()]))
    onnx.save(model, str(copy))
