"""Facts of a graph saved by ONNX Runtime."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from buildsys.backends.interface import Figures, shares
from buildsys.onnx_graphs.onnx_file import dtype_name

_INDEX_OPERATORS = ("Shape", "Size", "ArgMax", "ArgMin", "NonZero")
_BOOL_OPERATORS = (
    "And", "Or", "Xor", "Not", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
    "IsNaN", "IsInf",
)  # fmt: skip
_CONDITIONAL_OPERATORS = ("Where", "If", "Loop")  # their type is not that of their first input


def graph_facts(model_file: Path) -> Figures:
    """Return a graph's tensors, operators, and shares of types."""
    model = onnx.load(str(model_file), load_external_data=False)
    nodes = Counter(
        f"{node.domain}:{node.op_type}" if node.domain else node.op_type
        for node in model.graph.node
    )
    weights: Counter[str] = Counter()
    for initializer in model.graph.initializer:
        itemsize = int(helper.tensor_dtype_to_np_dtype(initializer.data_type).itemsize)
        weights[_type_name(initializer.data_type)] += math.prod(initializer.dims) * itemsize
    return {
        "inputs": [_tensor_facts(value) for value in model.graph.input],
        "outputs": [_tensor_facts(value) for value in model.graph.output],
        "layers": dict(sorted(nodes.items())),
        "precision_shares": {
            "layers": shares(_node_types(model.graph)),
            "weights": shares(weights),
        },
    }


def _node_types(graph: Any) -> Counter[str]:
    """Count nodes by the type of their first output.

    A saved graph has no types for its inner tensors, and ONNX cannot infer them across ONNX
    Runtime's own operators, so they are derived from Casts and weights.
    """
    types: dict[str, int] = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for values in (graph.input, graph.value_info, graph.output):
        types.update({value.name: value.type.tensor_type.elem_type for value in values})
    counts: Counter[str] = Counter()
    for node in graph.node:
        found = types.get(node.output[0]) or _output_type(node, types)
        types.update({name: found for name in node.output if name not in types})
        counts[_type_name(found)] += 1
    return counts


def _output_type(node: Any, types: Mapping[str, int]) -> int:
    if node.op_type in _INDEX_OPERATORS:
        return int(TensorProto.INT64)
    if node.op_type in _BOOL_OPERATORS:
        return int(TensorProto.BOOL)
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to":
            return int(attribute.i)
        if attribute.name == "value" and attribute.HasField("t"):
            return int(attribute.t.data_type)
    inputs = node.input[1:] if node.op_type in _CONDITIONAL_OPERATORS else node.input
    return next((types[name] for name in inputs if types.get(name)), 0)


def _tensor_facts(value: Any) -> dict[str, Any]:
    tensor = value.type.tensor_type
    shape = [
        size.dim_value if size.HasField("dim_value") else size.dim_param or "?"
        for size in tensor.shape.dim
    ]
    return {"name": value.name, "dtype": _type_name(tensor.elem_type), "shape": shape}


def _type_name(elem_type: int) -> str:
    return "unknown" if elem_type == TensorProto.UNDEFINED else dtype_name(elem_type)
