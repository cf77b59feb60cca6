"""Local functions in an order and with inner names that do not depend on where objects lie in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx

from buildsys.onnx_graphs.onnx_file import all_nodes, subgraphs


def settle_functions(model: onnx.ModelProto) -> None:
    """Sort the local functions and all attributes by name, and number what is named inside each function.

    The exporter writes them in the order of hash tables of addresses, counts nodes through all functions, and names
    parameters after one of the calls.
    """
    _reorder(
        model.functions,
        sorted(model.functions, key=lambda function: (function.domain, function.name)),
    )
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
        _reorder(
            function.attribute_proto,
            sorted(function.attribute_proto, key=lambda attribute: attribute.name),
        )
        _reorder(
            function.opset_import, sorted(function.opset_import, key=lambda entry: entry.domain)
        )
    nodes = [
        *all_nodes(model.graph),
        *(node for function in model.functions for node in function.node),
    ]
    for node in nodes:
        _reorder(node.attribute, sorted(node.attribute, key=lambda attribute: attribute.name))


def _reorder(field: Any, messages: list[Any]) -> None:
    kept = [
        type(message).FromString(message.SerializeToString()) for message in messages
    ]  # the field owns its own
    del field[:]
    field.extend(kept)


def _rename_nodes(nodes: Iterable[onnx.NodeProto], names: dict[str, str], prefix: str = "") -> None:
    """Name nodes and their outputs by their place; ``names`` has old -> new of all that they can see."""
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
