"""The order of nodes, which ONNX prescribes and ONNX Runtime does not need."""

from graphlib import CycleError, TopologicalSorter

from onnx import GraphProto, NodeProto

from buildsys.onnx_graphs.onnx_file import subgraphs
from buildsys.onnx_graphs.tensor_types import outer_names


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
