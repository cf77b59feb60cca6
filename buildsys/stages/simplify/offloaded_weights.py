"""Keep from a simplifier the large weights that no rewrite of it can use.

A simplifier copies a graph several times, weights included: vgg11's 507 MB become 1.2 GB of memory, only to come
out as they went in. As an input of the graph a weight has no value that could be folded or rewritten, so what is
done to the graph holds for every value, and the weight goes from file to file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.external_data_helper import ExternalDataInfo

from buildsys.onnx_graphs.onnx_file import all_nodes, operator_name, outside_bytes, subgraphs

_LARGE_BYTES = 1 << 20
# Operator -> which of its inputs is the weight. MatMul is not among them: with the Add behind it it becomes a Gemm,
# and those of one input become one, both only where the weights are known.
_WEIGHT_AT = {"Conv": 1, "ConvTranspose": 1, "Gather": 0, "Gemm": 1}
_CHANGED_BY = "BatchNormalization"  # is folded into the weights before it
_COMPARED_BYTES = 4096


def set_aside(model: ModelProto, folder: Path) -> list[TensorProto]:
    """Make inputs of large weights in external data whose values no rewrite uses; return their tensors.

    ``folder`` is where the external data lies, which ``model`` must not have loaded. Nothing is set aside where the
    greater part of the weights would stay: what stays is copied once more to be given to a tool.
    """
    if model.functions or any(node.op_type == _CHANGED_BY for node in all_nodes(model.graph)):
        return []
    stored = model.graph.initializer
    names = _weights_alone(model.graph)
    large = [
        tensor
        for tensor in stored
        if tensor.name in names and outside_bytes(tensor) >= _LARGE_BYTES
    ]
    aside = [_copied(tensor) for tensor in _without_likes(large, folder)]
    if 2 * sum(map(outside_bytes, aside)) < sum(map(outside_bytes, stored)):
        return []
    _remove(stored, aside)
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in aside
    )
    return aside


def put_back(model: ModelProto, aside: Sequence[TensorProto]) -> None:
    """Undo ``set_aside`` in a graph that was simplified since; weights that it no longer uses stay away."""
    _remove(model.graph.input, aside)
    used = {name for node in all_nodes(model.graph) for name in node.input}
    model.graph.initializer.extend(tensor for tensor in aside if tensor.name in used)


def _remove(field: Any, named: Iterable[TensorProto]) -> None:
    """Remove from a repeated field those that have the name of one of ``named``."""
    names = {tensor.name for tensor in named}
    for at in reversed(range(len(field))):
        if field[at].name in names:
            del field[at]


def _weights_alone(graph: GraphProto) -> set[str]:
    """Return initializers that serve as weights only, each time with an activation that no constants decide."""
    varying = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    uses, as_weights = Counter[str](value.name for value in graph.output), Counter[str]()
    for node in graph.node:
        uses.update(node.input)
        uses.update(name for body in subgraphs(node) for name in _names_in(body))
        weight = _weight_of(node)
        if varying.intersection(node.input):
            varying.update(node.output)
            if weight is not None:
                as_weights[weight] += 1
    return {name for name, count in as_weights.items() if uses[name] == count}


def _names_in(body: GraphProto) -> Iterator[str]:
    """Yield what the body of an If, Loop or Scan reads, and what it gives back."""
    yield from (value.name for value in body.output)
    for node in body.node:
        yield from node.input
        for inner in subgraphs(node):
            yield from _names_in(inner)


def _weight_of(node: NodeProto) -> str | None:
    at = _WEIGHT_AT.get(operator_name(node))
    return node.input[at] if at is not None and at < len(node.input) else None


def _without_likes(tensors: Iterable[TensorProto], folder: Path) -> list[TensorProto]:
    """Leave out those that may be equal to another one: a simplifier keeps one of them."""
    begins = [(tensor, _beginning(tensor, folder)) for tensor in tensors]
    alike = Counter((tensor.data_type, tuple(tensor.dims), begin) for tensor, begin in begins)
    return [
        tensor
        for tensor, begin in begins
        if alike[tensor.data_type, tuple(tensor.dims), begin] == 1
    ]


def _beginning(tensor: TensorProto, folder: Path) -> bytes:
    place = ExternalDataInfo(tensor)
    with (folder / place.location).open("rb") as stream:
        stream.seek(place.offset or 0)
        return stream.read(_COMPARED_BYTES)


def _copied(tensor: TensorProto) -> TensorProto:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    return copy
