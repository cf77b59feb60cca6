"""What an exported file says about how and where it was made: it is not content, and it differs between checkouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx

from buildsys.onnx_graphs.onnx_file import all_nodes, subgraphs, tensors_of

# ``pkg.``: stack traces with the paths and source lines of the user's checkout, symbols and parameters of the captured
# program, what the exporter has folded; ``namespace``: the user's file, class and modules behind a node
_TRACES = ("pkg.", "namespace")


def strip_traces(model: onnx.ModelProto) -> list[str]:
    """Remove traces of the exporter, doc strings and its version; returns the names of what was removed.

    The names of nodes and tensors stay, and so do metadata and doc string of the model itself, which people set.
    """
    stripped: set[str] = set()
    for message in _annotated(model):
        kept = [entry for entry in message.metadata_props if not entry.key.startswith(_TRACES)]
        if len(kept) != len(message.metadata_props):
            stripped.update(
                entry.key for entry in message.metadata_props if entry.key.startswith(_TRACES)
            )
            del message.metadata_props[:]
            message.metadata_props.extend(kept)
        if message.doc_string:
            stripped.add("doc_string")
            message.ClearField("doc_string")
    if model.producer_version:  # 2.14.1 or 2.14.1+cu130: a new one need not change a single node
        stripped.add("producer_version")
        model.ClearField("producer_version")
    return sorted(stripped)


def _annotated(model: onnx.ModelProto) -> Iterator[Any]:
    """Yield every message that may carry metadata or a doc string."""
    for graph in _graphs(model):
        yield graph
        yield from (*graph.input, *graph.output, *graph.value_info, *graph.node)
    for function in model.functions:
        yield function
        yield from (*function.value_info, *function.node)
    yield from tensors_of(model)


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    yield model.graph
    yield from _bodies(all_nodes(model.graph))
    for function in model.functions:
        for body in _bodies(function.node):
            yield body
            yield from _bodies(all_nodes(body))


def _bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for node in nodes:
        yield from subgraphs(node)
