"""Graphs of opset 6 in opset 7, by hand.

Opset 7 is the first that broadcasts as numpy does. The converter refuses this step for dynamic
sizes and most axes, and ignores PRelu's.
"""

from collections.abc import Mapping

from onnx import ModelProto, NodeProto, helper, shape_inference

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import (
    STANDARD,
    subgraphs,
)
from buildsys.onnx_graphs.tensor_names import sort_nodes
from buildsys.onnx_graphs.tensor_types import FreshNames, since_version

_BROADCASTING = frozenset((
    "Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "PRelu", "Pow", "Sub", "Xor",
))  # fmt: skip
_EQUAL = frozenset(("AveragePool", "BatchNormalization", "Dropout", "GRU", "Gemm", "LSTM", "RNN"))
_REMOVED = ("axis", "broadcast", "consumed_inputs", "is_test", "output_sequence")  # attributes


def raise_to_seven(model: ModelProto) -> None:
    """Rewrite a model of opset 6, in place.

    Raises: StageError: a node changed otherwise, or the rank of an operand is unknown.
    """
    graph, ranks, fresh = model.graph, _ranks(model), FreshNames(model.graph)
    for node in list(graph.node):
        if any(subgraphs(node)):
            raise _refusal(node, "has a subgraph")
        if since_version(node, 6) != since_version(node, 7):
            if node.op_type not in _BROADCASTING | _EQUAL:
                raise _refusal(node, "changed")
            if node.op_type in _BROADCASTING and (axes := _missing_axes(node, ranks)):
                aligned = fresh.new(f"{node.input[1]}_aligned")
                graph.node.add().CopyFrom(
                    helper.make_node("Unsqueeze", [node.input[1]], [aligned], axes=axes)
                )
                node.input[1] = aligned
            remaining = [entry for entry in node.attribute if entry.name not in _REMOVED]
            del node.attribute[:]
            node.attribute.extend(remaining)
    sort_nodes(graph)
    for entry in model.opset_import:
        if entry.domain in STANDARD:
            entry.version = 7


def broadcasts_along_an_axis(model: ModelProto) -> bool:
    """Check for broadcasting that no evaluator of today computes."""
    return any(
        node.op_type == "PRelu" or any(entry.name == "axis" for entry in node.attribute)
        for node in model.graph.node
        if node.op_type in _BROADCASTING
    )


def _ranks(model: ModelProto) -> dict[str, int]:
    graph = shape_inference.infer_shapes(model).graph
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            ranks[value.name] = len(value.type.tensor_type.shape.dim)
    return ranks


def _missing_axes(node: NodeProto, ranks: Mapping[str, int]) -> list[int]:
    """List the axes that the second operand lacks after its last one."""
    axis = next((int(entry.i) for entry in node.attribute if entry.name == "axis"), None)
    if node.op_type == "PRelu":
        axis = 1
    if axis is None:  # aligned at the end already
        return []
    whole, part = (ranks.get(name) for name in node.input)
    if whole is None or part is None:
        raise _refusal(node, "broadcasts an operand of unknown rank")
    first = axis % whole + part
    return list(range(part, part + whole - first))


def _refusal(node: NodeProto, what: str) -> StageError:
    return StageError(f"{node.op_type} (node {node.name or node.output[0]}) of opset 6 {what}")
