"""Nodes that are in two graphs and differ: in attributes, stored inputs, where their inputs come from, or bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from buildsys.onnx_graphs.inspection.node_matching import Matching, content, is_stored
from buildsys.onnx_graphs.inspection.plain_graph import Body, Node

CompareBodies = Callable[[Body, Body], dict[str, Any]]


@dataclass(frozen=True)
class Change:
    """A node that is in both graphs and differs."""

    node: Node
    other: Node
    attributes: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    weights: Sequence[tuple[int, str, str]] = ()  # port, initializer there and here
    has_other_numbers: bool = False  # among them are some that are no indices or shapes
    inputs: Sequence[tuple[int, str, str]] = ()  # port, tensor there and here
    bodies: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it with nodes by their labels."""
        return {
            "label": self.other.label, "operator": self.other.operator, "was": self.node.label,
            "attributes": {name: list(pair) for name, pair in self.attributes.items()},
            "weights": [{"port": port, "from": was, "to": now} for port, was, now in self.weights],
            "numbers": self.has_other_numbers,
            "inputs": [{"port": port, "from": was, "to": now} for port, was, now in self.inputs],
            "bodies": dict(self.bodies),
        }  # fmt: skip


def node_changes(matching: Matching, compare: CompareBodies) -> Iterator[Change]:
    """Yield the nodes that are in both graphs and differ; ``compare`` tells how two bodies do, {} where they do not."""
    for node, other in matching.nodes.items():
        attributes = {
            name: pair
            for name in dict.fromkeys((*node.attributes, *other.attributes))
            if (pair := (node.attributes.get(name), other.attributes.get(name)))[0] != pair[1]
        }
        weights, inputs = _input_changes(node, other, matching)
        bodies = _body_changes(node, other, compare)
        values = [ours.digest for ours in node.constants] != [
            theirs.digest for theirs in other.constants
        ]
        if attributes or weights or inputs or bodies or values:
            numbers = any(_is_number(now, matching.second) for _, _, now in weights)
            yield Change(node, other, attributes, weights, numbers, inputs, bodies)


def _is_number(name: str, body: Body) -> bool:
    value = body.value(name)
    return (
        value is not None
        and "int64" not in value.dtype
        and value.dtype not in ("int32", "bool", "string")
    )


def _body_changes(node: Node, other: Node, compare: CompareBodies) -> dict[str, dict[str, Any]]:
    shared = (name for name in node.bodies if name in other.bodies)
    compared = {name: compare(node.bodies[name], other.bodies[name]) for name in shared}
    return {name: found for name, found in compared.items() if found}


def _input_changes(
    node: Node, other: Node, matching: Matching
) -> tuple[list[tuple[int, str, str]], list[tuple[int, str, str]]]:
    """Return stored inputs with other contents, and inputs from elsewhere whose maker is still there."""
    weights, inputs = [], []
    for port in range(max(len(node.inputs), len(other.inputs))):
        was = node.inputs[port] if port < len(node.inputs) else ""
        now = other.inputs[port] if port < len(other.inputs) else ""
        if is_stored(now, matching.second) and (is_stored(was, matching.first) or not was):
            if content(was, matching.first) != content(now, matching.second):
                weights.append((port, was, now))
        elif _is_elsewhere(was, now, matching):
            inputs.append((port, was, now))
    return weights, inputs


def _is_elsewhere(was: str, now: str, matching: Matching) -> bool:
    """Tell whether a port takes another tensor for which no group of gone or new nodes accounts."""
    makers = matching.first.producers.get(was), matching.second.producers.get(now)
    if (makers[0] is not None and makers[0] not in matching.nodes) or (
        makers[1] is not None and makers[1] not in matching.back
    ):
        return False
    return matching.tensors.get(was, was) != now
