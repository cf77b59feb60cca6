"""ONNX models as plain data, without weights and without the library onnx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

CONSTANT = "Constant"
TIMES = "\N{MULTIPLICATION SIGN}"
# sizes: a number, the name of a dynamic dimension, None: unknown
Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Value:
    """Known type and shape of a tensor."""

    dtype: str
    shape: Shape | None

    def __str__(self) -> str:
        """Return e.g. ``float32 [batch, 64, 56, 56]``."""
        return f"{self.dtype} {shape_text(self.shape)}"


@dataclass(frozen=True)
class StoredTensor(Value):
    """A stored tensor. ``digest`` covers type, shape and values."""

    shape: tuple[int, ...]
    name: str
    bytes: int
    digest: str = ""

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
        consumers: dict[str, list[PlainNode]] = {}
        for node in self.nodes:
            for name in node.reads:
                consumers.setdefault(name, []).append(node)
        return consumers

    @cached_property
    def captured(self) -> tuple[str, ...]:
        """Tensors from the enclosing graph."""
        own = {*self.inputs, *self.initializers, *self.producers}
        reads = (name for node in self.nodes for name in node.reads)
        return tuple(
            dict.fromkeys(name for name in (*reads, *self.outputs) if name and name not in own)
        )

    @cached_property
    def stored(self) -> dict[str, str]:
        """Initializer or output of a Constant -> its digest, "" if unknown."""
        digests = {}
        for node in self.nodes:
            if node.operator == CONSTANT:
                digest = node.constants[0].digest if node.constants else ""
                digests.update(dict.fromkeys(filter(None, node.outputs), digest))
        return digests | {name: tensor.digest for name, tensor in self.initializers.items()}

    def value(self, name: str) -> Value | None:
        """Return type and shape of a tensor, None if they are unknown."""
        return self.values.get(name) or self.initializers.get(name)

    def walk(self, inside: str = "") -> Iterator[tuple[PlainNode, str]]:
        """Yield all nodes with the path of their body, e.g. ``loop.body``, after its node."""
        for node in self.nodes:
            yield node, inside
            for attribute, body in node.bodies.items():
                yield from body.walk(f"{inside}/{node.label}.{attribute}".lstrip("/"))


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

    @property
    def initializers(self) -> list[StoredTensor]:
        """All initializers, including those of bodies."""
        inner = (body for node, _ in self.body.walk() for body in node.bodies.values())
        return [tensor for body in (self.body, *inner) for tensor in body.initializers.values()]

    @property
    def operators(self) -> dict[str, int]:
        """Operator -> count with bodies and local functions, by falling count."""
        bodies = (self.body, *(Body((), (), function.nodes) for function in self.functions))
        counts = Counter(node.operator for body in bodies for node, _ in body.walk())
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def shape_text(shape: Shape | None) -> str:
    """Return ``[batch, 3, ?]``, or ``[…]`` for an unknown rank."""
    if shape is None:
        return "[…]"
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
