"""Origin of NaN and infinity in a graph."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from buildsys.onnx_graphs.tensor_types import FreshNames, element_types

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class OverflowOrigin:
    """The first non-finite tensor computed from finite ones."""

    tensor: str
    operator: str = ""  # of the node; empty for a graph input
    node: str = ""

    def __str__(self) -> str:
        """Return the tensor with its operator and node."""
        if not self.operator:
            return f"{self.tensor}, an input of the graph,"
        node = f"node {self.node}" if self.node else "an unnamed node"
        return f"{self.tensor}, of {self.operator} ({node}),"


def add_probes(model: ModelProto) -> dict[str, str]:
    """Replace the outputs of ``model`` by probes of its float tensors.

    Return probe -> tensor. A probe is a scalar, so it needs no extra memory: 0, or NaN for a tensor
    of the main graph with a value that is not finite.
    """
    graph, fresh = model.graph, FreshNames(model.graph)
    zero = fresh.new("zero")
    graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), zero))
    names = [
        name
        for name, elem_type in element_types(model).items()
        if elem_type in _FLOATS and name != zero
    ]
    del graph.output[:]
    probes = {}
    for name in names:
        number, product, probe = (
            fresh.new(f"{name}_{step}") for step in ("number", "product", "probe")
        )
        graph.node.extend(
            (
                helper.make_node("Cast", [name], [number], to=TensorProto.FLOAT),
                helper.make_node("Mul", [number, zero], [product]),
                helper.make_node("ReduceSum", [product], [probe], keepdims=0),
            )
        )
        graph.output.append(helper.make_tensor_value_info(probe, TensorProto.FLOAT, []))
        probes[probe] = name
    return probes


def find_origin(
    nodes: Sequence[NodeProto], finite: Set[str], infinite: Set[str]
) -> OverflowOrigin | None:
    """Find the origin of the ``infinite`` tensors; None if unknown.

    A node without numeric inputs, such as a mask constant, is no origin. If a cast overflows, the
    origin is its input.
    """
    for node in nodes:
        inputs = [name for name in node.input if name in finite or name in infinite]
        result = next((name for name in node.output if name in infinite), None)
        if result is not None and inputs and infinite.isdisjoint(inputs):
            tensor = node.input[0] if node.op_type == "Cast" else result
            producer = next((other for other in nodes if tensor in other.output), None)
            if producer is None:
                return OverflowOrigin(tensor)
            return OverflowOrigin(tensor, producer.op_type, producer.name)
    return None
