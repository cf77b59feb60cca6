"""The nodes of an ONNX file, read off its bytes: a toolchain that builds engines need not have the library onnx.

Source: Protocol Buffers documentation, "Encoding"; onnx.proto for the numbers of the fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5  # wire types
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
    try:
        return _read(memoryview(onnx.read_bytes()))
    except (ValueError, IndexError):  # a broken file: the parser says so
        return OnnxNodes((), frozenset())


def _read(model: memoryview) -> OnnxNodes:
    nodes: list[Node] = []
    functions = set()
    for number, value in _fields(model):
        if number == _MODEL_GRAPH:
            nodes += [_node(each) for field, each in _fields(value) if field == _GRAPH_NODE]
        elif number == _MODEL_FUNCTION:
            text = _texts(value, _FUNCTION_DOMAIN, _FUNCTION_NAME)
            functions.add((text[_FUNCTION_DOMAIN], text[_FUNCTION_NAME]))
    return OnnxNodes(tuple(nodes), frozenset(functions))


def _node(message: memoryview) -> Node:
    text = _texts(message, _NODE_NAME, _NODE_OPERATOR, _NODE_DOMAIN, _NODE_OUTPUT)
    return Node(text[_NODE_NAME], text[_NODE_OPERATOR], text[_NODE_DOMAIN], text[_NODE_OUTPUT])


def _texts(message: memoryview, *numbers: int) -> dict[int, str]:
    """Return the first text of each field, "" where there is none."""
    found = dict.fromkeys(numbers, "")
    for number, value in _fields(message):
        if number in found and not found[number]:
            found[number] = bytes(value).decode(errors="replace")
    return found


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the bytes of every field that has a length."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise ValueError("a field is longer than its message")
            yield key >> 3, message[at : at + size]
            at += size
        elif kind in (_FIXED_64, _FIXED_32):
            at += 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"there is no wire type {kind}")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
