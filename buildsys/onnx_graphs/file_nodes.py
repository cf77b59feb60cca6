"""Nodes of an ONNX file, read without the library onnx: some interpreters that build have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from buildsys.system.protobuf import Content, Field, byte_fields, opened

# field numbers in onnx.proto
_MODEL_GRAPH, _MODEL_FUNCTION = 7, 25
_GRAPH_NODE = 1
_NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 2, 3, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_TEXT, _ATTRIBUTE_BODIES = 1, 4, (6, 11)
_FUNCTION_NAME, _FUNCTION_NODE, _FUNCTION_DOMAIN = 1, 7, 10


class OnnxNode(NamedTuple):
    """A node of a graph or function."""

    name: str
    operator: str
    domain: str
    output: str
    attributes: Mapping[str, str]  # "" unless a text
    bodies: tuple[OnnxNode, ...]  # of its subgraphs

    def all(self) -> Iterator[OnnxNode]:
        """Yield this node and those of its subgraphs."""
        yield self
        for node in self.bodies:
            yield from node.all()


class OnnxNodes(NamedTuple):
    """Nodes of a main graph and of its local functions, by (domain, name)."""

    nodes: tuple[OnnxNode, ...] = ()
    functions: Mapping[tuple[str, str], tuple[OnnxNode, ...]] = {}

    def all(self) -> Iterator[OnnxNode]:
        """Yield every node, also of functions and subgraphs."""
        for nodes in (self.nodes, *self.functions.values()):
            for node in nodes:
                yield from node.all()


def read_nodes(onnx: Path) -> OnnxNodes:
    """Return a file's nodes, without the library onnx; none if not ONNX."""
    nodes: list[OnnxNode] = []
    functions = {}
    with opened(onnx) as content:
        try:
            for field in byte_fields(content, 0, len(content)):
                if field.number == _MODEL_FUNCTION:
                    texts = _texts(content, field, _FUNCTION_DOMAIN, _FUNCTION_NAME)
                    name = texts[_FUNCTION_DOMAIN], texts[_FUNCTION_NAME]
                    functions[name] = tuple(_nodes(content, field, _FUNCTION_NODE))
                elif field.number == _MODEL_GRAPH:
                    nodes += _nodes(content, field, _GRAPH_NODE)
        except (ValueError, IndexError):
            return OnnxNodes()
    return OnnxNodes(tuple(nodes), functions)


def _nodes(content: Content, owner: Field, number: int) -> Iterator[OnnxNode]:
    """Yield the nodes of a graph or function, which has them as field ``number``."""
    for field in byte_fields(content, owner.start, owner.stop):
        if field.number != number:
            continue
        attributes: dict[str, str] = {}
        bodies: list[OnnxNode] = []
        for part in byte_fields(content, field.start, field.stop):
            if part.number != _NODE_ATTRIBUTE:
                continue
            texts = _texts(content, part, _ATTRIBUTE_NAME, _ATTRIBUTE_TEXT)
            attributes[texts[_ATTRIBUTE_NAME]] = texts[_ATTRIBUTE_TEXT]
            for inner in byte_fields(content, part.start, part.stop):
                if inner.number in _ATTRIBUTE_BODIES:
                    bodies += _nodes(content, inner, _GRAPH_NODE)
        texts = _texts(content, field, _NODE_NAME, _NODE_OPERATOR, _NODE_DOMAIN, _NODE_OUTPUT)
        name, operator, domain, output = texts.values()
        yield OnnxNode(name, operator, domain, output, attributes, tuple(bodies))


def _texts(content: Content, message: Field, *numbers: int) -> dict[int, str]:
    """Return the first text of each field, "" if there is none."""
    found = dict.fromkeys(numbers, "")
    for number, start, stop in byte_fields(content, message.start, message.stop):
        if number in found and not found[number]:
            found[number] = content[start:stop].decode(errors="replace")
    return found
