"""A graph as plain data: nodes, tensors and what is stored, without the weights themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

TIMES = "\N{MULTIPLICATION SIGN}"
Size = int | str | None  # a number, the name of a dynamic dimension, or not known
Shape = tuple[Size, ...]


@dataclass(frozen=True)
class Value:
    """Type and shape of a tensor, as far as they are known."""

    dtype: str
    shape: Shape | None

    def __str__(self) -> str:
        """Return e.g. ``float32 [batch, 64, 56, 56]``."""
        return f"{self.dtype} {shape_text(self.shape)}"


@dataclass(frozen=True)
class Stored:
    """A tensor that is stored with the graph; ``digest`` is of its type, shape and values, "" where not asked for."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    digest: str = ""

    @property
    def elements(self) -> int:
        """The number of its values."""
        return product(self.shape)


@dataclass(frozen=True, eq=False)
class Node:
    """One operator of a graph; ``inputs`` has "" for an optional one that is left out."""

    name: str  # "" where the exporter gave none
    operator: str  # "Conv", or "my.domain::Op" outside ONNX's own domain
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)  # as text
    bodies: Mapping[str, Body] = field(default_factory=dict)  # of If, Loop and Scan, by attribute
    constants: tuple[Stored, ...] = ()  # tensors among its attributes

    @property
    def label(self) -> str:
        """Its name, or the tensor that it makes: every node can be told by it."""
        return self.name or next((name for name in self.outputs if name), self.operator)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it takes, those that its bodies take from outside included."""
        outer = (name for body in self.bodies.values() for name in body.captured)
        return tuple(dict.fromkeys(name for name in (*self.inputs, *outer) if name))


@dataclass(frozen=True, eq=False)
class Body:
    """A graph, or the body of an If, Loop or Scan."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    initializers: Mapping[str, Stored] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)

    @cached_property
    def producers(self) -> dict[str, Node]:
        """Tensor -> the node that makes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def consumers(self) -> dict[str, list[Node]]:
        """Tensor -> the nodes that take it, in the order of the graph."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.reads:
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def captured(self) -> tuple[str, ...]:
        """The tensors that come from the graph around it."""
        own = {*self.inputs, *self.initializers, *self.producers}
        wanted = (name for node in self.nodes for name in node.reads)
        return tuple(
            dict.fromkeys(name for name in (*wanted, *self.outputs) if name and name not in own)
        )

    def value(self, name: str) -> Value | None:
        """Return type and shape of a tensor of this graph, None where nothing is known."""
        stored = self.initializers.get(name)
        return self.values.get(name) or (Value(stored.dtype, stored.shape) if stored else None)


@dataclass(frozen=True, eq=False)
class Function:
    """A local function: an operator that the file defines itself."""

    name: str  # "my.domain::Op"
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    opsets: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Network:
    """All of an ONNX file but its weights."""

    body: Body
    ir_version: int
    producer: str
    opsets: Mapping[str, int]
    functions: tuple[Function, ...] = ()

    @cached_property
    def placed(self) -> list[Placed]:
        """Every node with its place, those of bodies after the node that has them."""
        return list(_placed(self.body, ""))

    @property
    def stored(self) -> Iterator[Stored]:
        """All initializers, those of bodies included."""
        yield from self.body.initializers.values()
        for place in self.placed:
            for body in place.node.bodies.values():
                yield from body.initializers.values()


@dataclass(frozen=True, eq=False)
class Placed:
    """A node and the graph that it is in; ``inside`` is "" or e.g. ``loop.body``."""

    node: Node
    body: Body
    inside: str


def _placed(body: Body, inside: str) -> Iterator[Placed]:
    for node in body.nodes:
        yield Placed(node, body, inside)
        for attribute, inner in node.bodies.items():
            yield from _placed(inner, f"{inside}/{node.label}.{attribute}".lstrip("/"))


def operator_histogram(network: Network) -> dict[str, int]:
    """Return operator -> count over the graph, its bodies and local functions, by falling count."""
    nodes = [place.node for place in network.placed]
    for function in network.functions:
        nodes += [place.node for place in _placed(Body((), (), function.nodes), "")]
    counts = Counter(node.operator for node in nodes)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def product(sizes: tuple[int, ...]) -> int:
    """Return the product of sizes, 1 of none."""
    total = 1
    for size in sizes:
        total *= size
    return total


def shape_text(shape: Shape | None) -> str:
    """Return ``[batch, 3, ?]``; ``[…]`` where not even the rank is known."""
    return (
        "[…]"
        if shape is None
        else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
    )
