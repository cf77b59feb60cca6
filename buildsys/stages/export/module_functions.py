"""Local functions of modules, with names and order independent of memory addresses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx

from buildsys.onnx_graphs.onnx_file import all_nodes, subgraphs


def normalize_functions(model: onnx.ModelProto) -> None:
    """Sort local functions and all attributes; number names inside each function.

    The exporter writes them in the order of address hash tables, counts nodes across all functions,
    and names parameters after one of the calls.
    """
    _sort(model.functions, lambda function: (function.domain, function.name))
    for function in model.functions:
        names: dict[str, str] = {}
        function.input[:] = [
            names.setdefault(name, f"input_{index}") for index, name in enumerate(function.input)
        ]
        _rename_nodes(function.node, names)
        function.output[:] = [names.get(name, name) for name in function.output]
        for value in function.value_info:
            value.name = names.get(value.name, value.name)
        function.attribute[:] = sorted(function.attribute)
        _sort(function.attribute_proto, lambda attribute: attribute.name)
        _sort(function.opset_import, lambda entry: entry.domain)
    for nodes in (all_nodes(model.graph), *(function.node for function in model.functions)):
        for node in nodes:
            _sort(node.attribute, lambda attribute: attribute.name)


def _sort(field: Any, key: Any) -> None:
    # the field owns its messages, which del invalidates
    copies = [
        type(message).FromString(message.SerializeToString()) for message in sorted(field, key=key)
    ]
    del field[:]
    field.extend(copies)


def _rename_nodes(nodes: Iterable[onnx.NodeProto], names: dict[str, str], prefix: str = "") -> None:
    """Name nodes and outputs by position; ``names`` maps old to new."""
    for index, node in enumerate(nodes):
        node.name = f"{prefix}{node.op_type}_{index}"
        node.input[:] = [names.get(name, name) for name in node.input]
        for body in subgraphs(node):
            _rename_graph(body, dict(names), f"{node.name}/")
        for position, name in enumerate(node.output):
            if name:
                names[name] = f"{node.name}_{position}"
        node.output[:] = [names.get(name, name) for name in node.output]


def _rename_graph(graph: onnx.GraphProto, names: dict[str, str], prefix: str) -> None:
    for index, value in enumerate(graph.input):
        names[value.name] = value.name = f"{prefix}input_{index}"
    for index, tensor in enumerate(graph.initializer):
        names[tensor.name] = tensor.name = f"{prefix}constant_{index}"
    _rename_nodes(graph.node, names, prefix)
    for value in (*graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
