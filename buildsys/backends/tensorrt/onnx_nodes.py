"""The nodes of an ONNX file, read off its bytes: a toolchain that builds engines need not have the library onnx.

Source: onnx.proto for the numbers of the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from buildsys.system.protobuf import Content, Field, byte_fields, opened

_MODEL_GRAPH, _MODEL_FUNCTION = 7, 25
_GRAPH_NODE = 1
_NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_DOMAIN = 2, 3, 4, 7
_FUNCTION_NAME, _FUNCTION_DOMAIN = 1, 10


@dataclass(frozen=True)
class Node:
    """A node of the main graph."""

    name: str
    operator: str
    domain: str
    output: str


@dataclass(frozen=True)
class OnnxNodes:
    """The nodes of a file's main graph, and the functions that it brings, as (domain, name)."""

    nodes: tuple[Node, ...]
    functions: frozenset[tuple[str, str]]


def read_nodes(onnx: Path) -> OnnxNodes:
    """Return the nodes of a file; nothing where it is no ONNX."""
    with opened(onnx) as content:
        try:
            return _read(content)
        except (ValueError, IndexError):  # a broken file: the parser says so
            return OnnxNodes((), frozenset())


def _read(content: Content) -> OnnxNodes:
    nodes: list[Node] = []
    functions = set()
    for field in byte_fields(content, 0, len(content)):
        if field.number == _MODEL_GRAPH:
            inner = byte_fields(content, field.start, field.stop)
            nodes += [_node(content, each) for each in inner if each.number == _GRAPH_NODE]
        elif field.number == _MODEL_FUNCTION:
            text = _texts(content, field, _FUNCTION_DOMAIN, _FUNCTION_NAME)
            functions.add((text[_FUNCTION_DOMAIN], text[_FUNCTION_NAME]))
    return OnnxNodes(tuple(nodes), frozenset(functions))


def _node(content: Content, message: Field) -> Node:
    text = _texts(content, message, _NODE_NAME, _NODE_OPERATOR, _NODE_DOMAIN, _NODE_OUTPUT)
    return Node(text[_NODE_NAME], text[_NODE_OPERATOR], text[_NODE_DOMAIN], text[_NODE_OUTPUT])


def _texts(content: Content, message: Field, *numbers: int) -> dict[int, str]:
    """Return the first text of each field, "" where there is none."""
    found = dict.fromkeys(numbers, "")
    for number, start, stop in byte_fields(content, message.start, message.stop):
        if number in found and not found[number]:
            found[number] = content[start:stop].decode(errors="replace")
    return found
