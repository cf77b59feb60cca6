"""Names of tensors in graphs with subgraphs, and the order of nodes."""

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from onnx import GraphProto, ModelProto, NodeProto

from buildsys.onnx_graphs.onnx_file import all_nodes, subgraphs
from buildsys.onnx_graphs.tensor_types import FreshNames, outer_names


def rename_tensors(model: ModelProto, names: Mapping[str, str]) -> None:
    """Rename tensors of the graph and its subgraphs; others with a new name move away."""
    fresh = FreshNames(model.graph)
    for name in names.values():
        fresh.new(name)  # none of those that move
    bodies = [model.graph, *(b for node in all_nodes(model.graph) for b in subgraphs(node))]
    present = {name for body in bodies for name in _tensors(body)}
    moved = {name: fresh.new(name) for name in sorted({*names.values()} & present - names.keys())}
    changed = {**names, **moved}
    for body in bodies:
        for node in body.node:
            node.input[:] = [changed.get(name, name) for name in node.input]
            node.output[:] = [changed.get(name, name) for name in node.output]
        for value in (*body.input, *body.output, *body.value_info, *body.initializer):
            value.name = changed.get(value.name, value.name)
        for sparse in body.sparse_initializer:
            sparse.values.name = changed.get(sparse.values.name, sparse.values.name)


def _tensors(body: GraphProto) -> Iterator[str]:
    """Yield inputs, initializers and results of nodes."""
    yield from (value.name for value in (*body.input, *body.initializer))
    yield from (sparse.values.name for sparse in body.sparse_initializer)
    yield from (name for node in body.node for name in node.output if name)


def sort_nodes(graph: GraphProto) -> None:
    """Put every node after those that it reads, also in subgraphs; a cycle stays."""
    for node in graph.node:
        for body in subgraphs(node):
            sort_nodes(body)
    producers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needs = {
        i: sorted(
            {producers[name] for name in (*node.input, *outer_names(node)) if name in producers}
        )
        for i, node in enumerate(graph.node)
    }
    if all(max(earlier, default=-1) < i for i, earlier in needs.items()):
        return
    try:
        order = [*TopologicalSorter(needs).static_order()]
    except CycleError:
        return
    nodes = [NodeProto.FromString(graph.node[i].SerializeToString()) for i in order]
    del graph.node[:]
    graph.node.extend(nodes)
