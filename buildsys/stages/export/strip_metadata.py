"""Removal of metadata with differences between checkouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx

from buildsys.onnx_graphs.onnx_file import all_nodes, subgraphs, tensors_of

# ``pkg.``: stack traces with paths and lines of the user's checkout, symbols and parameters of the
# captured program, folded constants; ``namespace``: file, class and modules of a node
_TRACES = ("pkg.", "namespace")


def strip_traces(model: onnx.ModelProto) -> list[str]:
    """Remove the exporter's traces, doc strings and version; return their names.

    Node and tensor names stay, as do metadata and doc string of the model itself, set by people.
    """
    stripped: set[str] = set()
    for message in _annotated(model):
        traces = {e.key for e in message.metadata_props if e.key.startswith(_TRACES)}
        if traces:
            stripped |= traces
            kept = [entry for entry in message.metadata_props if entry.key not in traces]
            del message.metadata_props[:]
            message.metadata_props.extend(kept)
        if message.doc_string:
            stripped.add("doc_string")
            message.ClearField("doc_string")
    if model.producer_version:  # a new version (2.14.1, 2.14.1+cu130) need not change any node
        stripped.add("producer_version")
        model.ClearField("producer_version")
    return sorted(stripped)


def _annotated(model: onnx.ModelProto) -> Iterator[Any]:
    """Yield all messages with metadata or a doc string."""
    graphs = [model.graph, *_bodies(all_nodes(model.graph))]
    for function in model.functions:
        yield function
        yield from (*function.value_info, *function.node)
        for body in _bodies(function.node):
            graphs += [body, *_bodies(all_nodes(body))]
    for graph in graphs:
        yield graph
        yield from (*graph.input, *graph.output, *graph.value_info, *graph.node)
    yield from tensors_of(model)


def _bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for node in nodes:
        yield from subgraphs(node)
