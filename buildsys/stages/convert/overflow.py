"""Find the node at which a graph's numbers stop being finite."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from buildsys.onnx_graphs.rounding.fresh_names import FreshNames
from buildsys.onnx_graphs.rounding.tensor_types import element_types

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Origin:
    """The first tensor that is not finite although all that it is computed from is."""

    tensor: str
    operator: str = ""  # that gives it, and its node; none for an input of the graph
    node: str = ""

    def __str__(self) -> str:
        """Return the tensor as messages name it."""
        if not self.operator:
            return f"{self.tensor}, an input of the graph,"
        return f"{self.tensor}, of {self.operator} ({f'node {self.node}' if self.node else 'a node without a name'}),"


@dataclass
class Probes:
    """A graph that gives, instead of its outputs, one number per tensor: 0, or NaN where it is not finite."""

    model: ModelProto
    tensors: dict[str, str] = field(
        default_factory=dict
    )  # output of ``model`` -> tensor that it tells of


def add_probes(model: ModelProto) -> Probes:
    """Probe every float tensor of the main graph of ``model``, which is changed in place.

    Only scalars are kept, so that the probed graph needs no more memory than the graph.
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
    probes = Probes(model)
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
        probes.tensors[probe] = name
    return probes


def find_origin(
    nodes: Sequence[NodeProto], finite: Collection[str], infinite: Collection[str]
) -> Origin | None:
    """Return where the ``infinite`` tensors come from, or None where it cannot be told.

    A node that takes no numbers, such as the constant of a mask, is none. A number that a cast cannot
    hold comes from what is cast.
    """
    for node in nodes:
        known = [name for name in node.input if name in finite or name in infinite]
        result = next((name for name in node.output if name in infinite), None)
        if result is not None and known and not any(name in infinite for name in known):
            return _made(node.input[0], nodes) if node.op_type == "Cast" else _made(result, nodes)
    return None


def _made(tensor: str, nodes: Iterable[NodeProto]) -> Origin:
    maker = next((node for node in nodes if tensor in node.output), None)
    return Origin(tensor) if maker is None else Origin(tensor, maker.op_type, maker.name)
