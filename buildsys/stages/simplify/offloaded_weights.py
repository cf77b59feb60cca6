"""Large weights without effect on simplification, kept out of the graph.

A simplifier copies a graph several times, weights included: vgg11's 507 MB become 1.2 GB of memory,
with the same weights in the end. As a graph input a weight has no value to fold or rewrite, so the
changes to the graph hold for every value, and the weight is copied from file to file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto, TensorProto, helper
from onnx.external_data_helper import ExternalDataInfo

from buildsys.onnx_graphs.onnx_file import all_nodes, operator_name, outside_bytes, subgraphs

_LARGE_BYTES = 1 << 20
# Operator -> index of its weight. Without MatMul: with a following Add it becomes a Gemm, and those
# with the same input are merged, both only if the weights are known.
_WEIGHT_INDEX = {"Conv": 1, "ConvTranspose": 1, "Gather": 0, "Gemm": 1}
_FOLDED = "BatchNormalization"  # is folded into preceding weights
_COMPARED_BYTES = 4096


def offload_weights(model: ModelProto, folder: Path) -> list[TensorProto]:
    """Turn large, unused-by-rewrites external weights into inputs; return their tensors.

    ``folder`` holds the external data, not loaded in ``model``. Nothing is offloaded if most of the
    weights would stay: the rest is copied once more for the tool.
    """
    if model.functions or any(node.op_type == _FOLDED for node in all_nodes(model.graph)):
        return []
    stored = model.graph.initializer
    names = _plain_weights(model.graph)
    large = [t for t in stored if t.name in names and outside_bytes(t) >= _LARGE_BYTES]
    # a simplifier merges equal tensors
    keys = []
    for tensor in large:
        place = ExternalDataInfo(tensor)
        with (folder / place.location).open("rb") as stream:
            stream.seek(place.offset or 0)
            keys.append((tensor.data_type, tuple(tensor.dims), stream.read(_COMPARED_BYTES)))
    count = Counter(keys)
    offloaded = []
    for tensor, key in zip(large, keys, strict=True):
        if count[key] == 1:
            copy = TensorProto()
            copy.CopyFrom(tensor)
            offloaded.append(copy)
    if 2 * sum(map(outside_bytes, offloaded)) < sum(map(outside_bytes, stored)):
        return []
    _remove(stored, offloaded)
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in offloaded
    )
    return offloaded


def restore_weights(model: ModelProto, offloaded: Sequence[TensorProto]) -> None:
    """Undo ``offload_weights`` in the simplified graph, without unused weights."""
    _remove(model.graph.input, offloaded)
    used = {name for node in all_nodes(model.graph) for name in node.input}
    model.graph.initializer.extend(tensor for tensor in offloaded if tensor.name in used)


def _remove(field: Any, tensors: Iterable[TensorProto]) -> None:
    names = {tensor.name for tensor in tensors}
    for index in reversed(range(len(field))):
        if field[index].name in names:
            del field[index]


def _plain_weights(graph: GraphProto) -> set[str]:
    """Return initializers only used as weights of activations, never of constants."""
    varying = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    uses, weight_uses = Counter[str](value.name for value in graph.output), Counter[str]()
    for node in graph.node:
        uses.update(node.input)
        uses.update(name for body in subgraphs(node) for name in _body_names(body))
        if varying.intersection(node.input):
            varying.update(node.output)
            index = _WEIGHT_INDEX.get(operator_name(node))
            if index is not None and index < len(node.input):
                weight_uses[node.input[index]] += 1
    return {name for name, count in weight_uses.items() if uses[name] == count}


def _body_names(body: GraphProto) -> Iterator[str]:
    """Yield the inputs and outputs in a subgraph."""
    yield from (value.name for value in body.output)
    for node in body.node:
        yield from node.input
        for inner in subgraphs(node):
            yield from _body_names(inner)
