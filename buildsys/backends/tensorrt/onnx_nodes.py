"""The nodes of an ONNX file, read without the library onnx.

Source: onnx.proto for the field numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from buildsys.system.protobuf import Content, Field, byte_fields, opened

_MODEL_GRAPH, _MODEL_FUNCTION = 7, 25
_GRAPH_NODE = 1
_NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_DOMAIN = 2, 3, 4, 7
_FUNCTION_NAME, _FUNCTION_DOMAIN = 1, 10


class OnnxNode(NamedTuple):
    """A node of the main graph."""

    name: str
    operator: str
    domain: str
    output: str


class OnnxNodes(NamedTuple):
    """Nodes of a main graph, and local functions as (domain, name)."""

    nodes: tuple[OnnxNode, ...] = ()
    functions: frozenset[tuple[str, str]] = frozenset()


def read_nodes(onnx: Path) -> OnnxNodes:
    """Return the nodes of a file; none if it is not ONNX."""
    nodes: list[OnnxNode] = []
    functions = set()
    with opened(onnx) as content:
        try:
            for field in byte_fields(content, 0, len(content)):
                if field.number == _MODEL_FUNCTION:
                    texts = _texts(content, field, _FUNCTION_DOMAIN, _FUNCTION_NAME)
                    functions.add((texts[_FUNCTION_DOMAIN], texts[_FUNCTION_NAME]))
                if field.number != _MODEL_GRAPH:
                    continue
                for inner in byte_fields(content, field.start, field.stop):
                    if inner.number == _GRAPH_NODE:
                        numbers = (_NODE_NAME, _NODE_OPERATOR, _NODE_DOMAIN, _NODE_OUTPUT)
                        texts = _texts(content, inner, *numbers)
                        nodes.append(OnnxNode(*(texts[number] for number in numbers)))
        except (ValueError, IndexError):
            return OnnxNodes()
    return OnnxNodes(tuple(nodes), frozenset(functions))


def _texts(content: Content, message: Field, *numbers: int) -> dict[int, str]:
    """Return the first text of each field, "" if there is none."""
    found = dict.fromkeys(numbers, "")
    for number, start, stop in byte_fields(content, message.start, message.stop):
        if number in found and not found[number]:
            found[number] = content[start:stop].decode(errors="replace")
    return found
