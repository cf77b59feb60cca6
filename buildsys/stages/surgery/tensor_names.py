"""Names of a graph's tensors: lists, uses and renaming; replacement of messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto

from buildsys.errors import StageError
from buildsys.manifest.problem import suggest
from buildsys.onnx_graphs.onnx_file import subgraphs


def input_names(model: ModelProto) -> list[str]:
    """Return the inputs without initializers."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in stored]


def output_names(model: ModelProto) -> list[str]:
    """Return the outputs."""
    return [value.name for value in model.graph.output]


def tensor_names(graph: GraphProto) -> list[str]:
    """Return inputs, initializers and node outputs, without those of subgraphs."""
    names = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    names += [name for node in graph.node for name in node.output if name]
    return [*dict.fromkeys(names)]


def require_known(name: str, known: Iterable[str], what: str) -> None:
    """Raise StageError with similar names if ``name`` is not ``known``."""
    names = list(known)
    if name not in names:
        raise StageError(
            f"the graph has no {what} {name}", suggest(name, names, what=f"its {what}s")
        )


def used_by(node: NodeProto) -> list[str]:
    """Return the tensors a node reads, also inside its subgraphs."""
    names = [name for name in node.input if name]
    for body in subgraphs(node):
        own = {*tensor_names(body)}
        names += [name for inner in body.node for name in used_by(inner) if name not in own]
        names += [value.name for value in body.output if value.name not in own]
    return names


def rename_tensors(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors everywhere, including subgraphs; new names must be unused."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for note in graph.quantization_annotation:
        note.tensor_name = names.get(note.tensor_name, note.tensor_name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for body in subgraphs(node):
            rename_tensors(body, names)


def replace_messages(field: Any, messages: Iterable[Any]) -> None:
    """Set a repeated field to copies of ``messages``, also from the field."""
    copies = []
    for message in messages:
        copies.append(type(message)())
        copies[-1].CopyFrom(message)
    del field[:]
    field.extend(copies)
