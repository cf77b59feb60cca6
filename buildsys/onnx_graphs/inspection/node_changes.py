"""Changed nodes, and removed and added groups of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from buildsys.onnx_graphs.inspection.node_matching import (
    CONSTANT,
    Matching,
    content,
    is_stored,
    regions,
)
from buildsys.onnx_graphs.inspection.plain_graph import TIMES, Body, PlainNode

CompareBodies = Callable[[Body, Body], dict[str, Any]]
_INPUT, _OUTPUT, _STORED = "input", "output", "initializer"  # connections without a node
_LONGEST_CHAIN = 8
_NOT_WEIGHTS = ("int32", "bool", "string")  # indices, flags


@dataclass(frozen=True)
class NodeChange:
    """A node of both graphs with its differences, as (first, second)."""

    node: PlainNode
    other: PlainNode
    attributes: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    weights: Sequence[tuple[int, str, str]] = ()  # input position and initializers
    changes_weights: bool = False  # not only indices or shapes
    inputs: Sequence[tuple[int, str, str]] = ()  # input position and tensors
    bodies: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it with nodes as their labels."""
        return {
            "label": self.other.label,
            "operator": self.other.operator,
            "was": self.node.label,
            "attributes": {name: list(pair) for name, pair in self.attributes.items()},
            "weights": [{"port": port, "from": was, "to": now} for port, was, now in self.weights],
            "numbers": self.changes_weights,
            "inputs": [{"port": port, "from": was, "to": now} for port, was, now in self.inputs],
            "bodies": dict(self.bodies),
        }


@dataclass(frozen=True)
class Connection:
    """A connection of a group to the rest of its graph."""

    tensor: str
    node: PlainNode | None
    kind: str  # the operator of the node, or input, output, initializer
    port: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return it with its node as a label."""
        label = self.node.label if self.node else None
        return {"tensor": self.tensor, "node": label, "kind": self.kind}


@dataclass(frozen=True)
class NodeGroup:
    """Connected nodes of one graph without match, and their counterpart.

    ``outcome`` of removed nodes: folded (into the weights of ``into``), left out, constant (their
    result is stored), shared (another node computes it), replaced (by the groups ``by``), unused.
    ``outcome`` of added nodes: new, or replaces.
    """

    nodes: Sequence[PlainNode]
    entries: Sequence[Connection]
    exits: Sequence[Connection]
    outcome: str
    into: tuple[str, ...] = ()  # operators
    by: tuple[tuple[PlainNode, ...], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it with nodes as their labels."""
        return {
            "nodes": [{"label": node.label, "operator": node.operator} for node in self.nodes],
            "chain": _chain_text(self.nodes),
            "from": [entry.as_json() for entry in self.entries],
            "to": [taken.as_json() for taken in self.exits],
            "fate": self.outcome,
            "into": list(self.into),
            "by": [[node.label for node in nodes] for nodes in self.by],
        }


def node_changes(matching: Matching, compare: CompareBodies) -> Iterator[NodeChange]:
    """Yield the changes of matched nodes. ``compare`` returns {} for equal bodies."""
    for node, other in matching.nodes.items():
        attributes = {
            name: pair
            for name in dict.fromkeys((*node.attributes, *other.attributes))
            if (pair := (node.attributes.get(name), other.attributes.get(name)))[0] != pair[1]
        }
        weights, inputs = _input_changes(node, other, matching)
        bodies = {
            name: found
            for name in node.bodies
            if name in other.bodies and (found := compare(node.bodies[name], other.bodies[name]))
        }
        constants = [[tensor.digest for tensor in one.constants] for one in (node, other)]
        if attributes or weights or inputs or bodies or constants[0] != constants[1]:
            dtypes = [v.dtype for *_, now in weights if (v := matching.second.value(now))]
            changed = any("int64" not in d and d not in _NOT_WEIGHTS for d in dtypes)
            yield NodeChange(node, other, attributes, weights, changed, inputs, bodies)


def removed_group(
    nodes: Sequence[PlainNode], matching: Matching, changes: Mapping[PlainNode, NodeChange]
) -> NodeGroup:
    """Return a group of removed nodes with its counterpart."""
    entries, exits = _entries(nodes, matching.first), _exits(nodes, matching.first)
    now = [tensor for end in exits if (tensor := _tensor_now(end, matching))]
    group = NodeGroup(nodes, entries, exits, "unused")
    if not now:
        return group
    if all(is_stored(tensor, matching.second) for tensor in now):
        return replace(group, outcome="constant")
    makers = [matching.second.producers.get(tensor) for tensor in now]
    new = {maker for maker in makers if maker is not None and maker not in matching.back}
    if new:
        added = regions(matching.added, matching.second)
        by = tuple(tuple(region) for region in added if new & set(region))
        return replace(group, outcome="replaced", by=by)
    before = {matching.tensors.get(end.tensor) for end in entries}
    if not set(now) <= before:
        return replace(group, outcome="shared", into=_operators(makers))
    for ends in (entries, exits):  # folded into the nodes before the group, or else after it
        near = [end.node for end in ends if end.node is not None]
        if near and all(node in changes and changes[node].changes_weights for node in near):
            return replace(group, outcome="folded", into=_operators(near))
    return replace(group, outcome="left out")


def added_group(
    nodes: Sequence[PlainNode], matching: Matching, removed: Sequence[NodeGroup]
) -> NodeGroup:
    """Return a group of added nodes with the removed groups it replaces."""
    entries, exits = _entries(nodes, matching.second), _exits(nodes, matching.second)
    replaced = [group for group in removed if any(tuple(nodes) == by for by in group.by)]
    outcome = "replaces" if replaced else "new"
    by = tuple(tuple(group.nodes) for group in replaced)
    return NodeGroup(nodes, entries, exits, outcome, by=by)


def _chain_text(nodes: Sequence[PlainNode]) -> str:
    """Return operators as ``Shape → Slice → Concat``, or as counts."""
    shown = [node.operator for node in nodes if node.operator != CONSTANT] or [CONSTANT]
    runs = [(operator, len(list(run))) for operator, run in groupby(shown)]
    if len(runs) > _LONGEST_CHAIN:
        runs = sorted(Counter(shown).items(), key=lambda item: (-item[1], item[0]))
        text = ", ".join(f"{operator} {TIMES}{count}" for operator, count in runs[:_LONGEST_CHAIN])
        return f"{len(shown)} nodes ({text}{', …' if len(runs) > _LONGEST_CHAIN else ''})"
    return " → ".join(f"{name} {TIMES}{count}" if count > 1 else name for name, count in runs)


def _input_changes(
    node: PlainNode, other: PlainNode, matching: Matching
) -> tuple[list[tuple[int, str, str]], list[tuple[int, str, str]]]:
    """Return stored inputs with other contents, and inputs from another matched node."""
    weights, inputs = [], []
    for port in range(max(len(node.inputs), len(other.inputs))):
        was = node.inputs[port] if port < len(node.inputs) else ""
        now = other.inputs[port] if port < len(other.inputs) else ""
        if is_stored(now, matching.second) and (is_stored(was, matching.first) or not was):
            if content(was, matching.first) != content(now, matching.second):
                weights.append((port, was, now))
            continue
        makers = matching.first.producers.get(was), matching.second.producers.get(now)
        is_in_group = (makers[0] is not None and makers[0] not in matching.nodes) or (
            makers[1] is not None and makers[1] not in matching.back
        )
        if not is_in_group and matching.tensors.get(was, was) != now:
            inputs.append((port, was, now))
    return weights, inputs


def _entries(nodes: Sequence[PlainNode], body: Body) -> list[Connection]:
    """Return the inputs of a group, preferably without stored tensors."""
    members, found = set(nodes), {}
    for node in nodes:
        for name in node.reads:
            maker = body.producers.get(name)
            if maker not in members:
                kind = maker.operator if maker else _STORED if name in body.initializers else _INPUT
                found[name] = Connection(name, maker, kind)
    activations = [end for end in found.values() if end.kind not in (_STORED, CONSTANT)]
    return activations or list(found.values())


def _exits(nodes: Sequence[PlainNode], body: Body) -> list[Connection]:
    members, found = set(nodes), []
    for name in (name for node in nodes for name in node.outputs if name):
        for taker in body.consumers.get(name, ()):
            if taker not in members:
                ports = [port for port, taken in enumerate(taker.inputs) if taken == name]
                # -1: read only by a body of the taker
                found += [Connection(name, taker, taker.operator, port) for port in ports or [-1]]
        ports = [port for port, taken in enumerate(body.outputs) if taken == name]
        found += [Connection(name, None, _OUTPUT, port) for port in ports]
    return found


def _tensor_now(end: Connection, matching: Matching) -> str:
    """Return the second graph's tensor at an exit, or ""."""
    if end.node is None:
        outputs = matching.second.outputs
        at_port = outputs[end.port] if end.port < len(outputs) else ""
        return end.tensor if end.tensor in outputs else at_port
    other = matching.nodes.get(end.node)
    return other.inputs[end.port] if other is not None and 0 <= end.port < len(other.inputs) else ""


def _operators(nodes: Iterable[PlainNode | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node.operator for node in nodes if node is not None))
