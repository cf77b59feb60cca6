"""ONNX models as plain data, without weights and without the library onnx."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

TIMES = "\N{MULTIPLICATION SIGN}"
Size = int | str | None  # a number, the name of a dynamic dimension, None: unknown
Shape = tuple[Size, ...]


@dataclass(frozen=True)
class Value:
    """Known type and shape of a tensor."""

    dtype: str
    shape: Shape | None

    def __str__(self) -> str:
        """Return e.g. ``float32 [batch, 64, 56, 56]``."""
        return f"{self.dtype} {shape_text(self.shape)}"


@dataclass(frozen=True)
class StoredTensor:
    """A stored tensor. ``digest`` covers type, shape and values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    digest: str = ""

    @property
    def elements(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def as_json(self) -> dict[str, Any]:
        """Return name, dtype, shape and size."""
        shape = list(self.shape)
        return {"name": self.name, "dtype": self.dtype, "shape": shape, "bytes": self.bytes}


@dataclass(frozen=True, eq=False)
class PlainNode:
    """One node; ``inputs`` has "" for an omitted optional input."""

    name: str  # "" where the exporter gave none
    operator: str  # "Conv", or "my.domain::Op" outside ONNX's own domain
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)  # as text
    bodies: Mapping[str, Body] = field(default_factory=dict)  # of If, Loop and Scan, by attribute
    constants: tuple[StoredTensor, ...] = ()  # tensors among its attributes

    @property
    def label(self) -> str:
        """Its name, or else its first output."""
        return self.name or next((name for name in self.outputs if name), self.operator)

    @property
    def reads(self) -> tuple[str, ...]:
        """Its inputs, including tensors captured by its bodies."""
        outer = (name for body in self.bodies.values() for name in body.captured)
        return tuple(dict.fromkeys(name for name in (*self.inputs, *outer) if name))


@dataclass(frozen=True, eq=False)
class Body:
    """A graph, or the body of an If, Loop or Scan."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[PlainNode, ...]
    initializers: Mapping[str, StoredTensor] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)

    @cached_property
    def producers(self) -> dict[str, PlainNode]:
        """Tensor -> its producer."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def consumers(self) -> dict[str, list[PlainNode]]:
        """Tensor -> its consumers, in the order of the graph."""
        found: dict[str, list[PlainNode]] = {}
        for node in self.nodes:
            for name in node.reads:
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def captured(self) -> tuple[str, ...]:
        """Tensors from the enclosing graph."""
        own = {*self.inputs, *self.initializers, *self.producers}
        wanted = (name for node in self.nodes for name in node.reads)
        return tuple(
            dict.fromkeys(name for name in (*wanted, *self.outputs) if name and name not in own)
        )

    def value(self, name: str) -> Value | None:
        """Return type and shape of a tensor, None if they are unknown."""
        stored = self.initializers.get(name)
        return self.values.get(name) or (Value(stored.dtype, stored.shape) if stored else None)


@dataclass(frozen=True, eq=False)
class Function:
    """A local function: an operator defined in the file."""

    name: str  # "my.domain::Op"
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[PlainNode, ...]
    opsets: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class PlainModel:
    """An ONNX file without its weights."""

    body: Body
    ir_version: int
    producer: str
    opsets: Mapping[str, int]
    functions: tuple[Function, ...] = ()

    @cached_property
    def placed(self) -> list[Placed]:
        """All nodes with their position, bodies after their node."""
        return list(_placed(self.body, ""))

    @property
    def stored(self) -> Iterator[StoredTensor]:
        """All initializers, including those of bodies."""
        yield from self.body.initializers.values()
        for place in self.placed:
            for body in place.node.bodies.values():
                yield from body.initializers.values()


@dataclass(frozen=True, eq=False)
class Placed:
    """A node with its graph; ``inside`` is "" or e.g. ``loop.body``."""

    node: PlainNode
    body: Body
    inside: str


def _placed(body: Body, inside: str) -> Iterator[Placed]:
    for node in body.nodes:
        yield Placed(node, body, inside)
        for attribute, inner in node.bodies.items():
            yield from _placed(inner, f"{inside}/{node.label}.{attribute}".lstrip("/"))


def operator_histogram(model: PlainModel) -> dict[str, int]:
    """Return operator -> count with bodies and local functions, by falling count."""
    nodes = [place.node for place in model.placed]
    for function in model.functions:
        nodes += [place.node for place in _placed(Body((), (), function.nodes), "")]
    counts = Counter(node.operator for node in nodes)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def shape_text(shape: Shape | None) -> str:
    """Return ``[batch, 3, ?]``, or ``[…]`` for an unknown rank."""
    if shape is None:
        return "[…]"
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
