"""Unused names in a graph."""

from __future__ import annotations

from onnx import GraphProto

from buildsys.onnx_graphs.onnx_file import all_nodes


class FreshNames:
    """Generator of unused names in a graph and its subgraphs."""

    def __init__(self, graph: GraphProto) -> None:
        self._taken = {entry.name for entry in (*graph.input, *graph.output, *graph.initializer)}
        for node in all_nodes(graph):
            self._taken.update((node.name, *node.input, *node.output))

    def new(self, wanted: str) -> str:
        """Return ``wanted``, with a numeric suffix if it is taken."""
        name, number = wanted, 1
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name
