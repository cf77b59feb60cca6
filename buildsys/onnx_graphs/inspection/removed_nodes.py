"""What became of nodes that are in one of two graphs alone: folded, computed beforehand, replaced, left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from buildsys.onnx_graphs.inspection.changed_nodes import Change
from buildsys.onnx_graphs.inspection.node_matching import Matching, is_stored, regions
from buildsys.onnx_graphs.inspection.plain_graph import TIMES, Body, Node

_CONSTANT = "Constant"
_INPUT, _OUTPUT, _STORED = "input", "output", "initializer"  # ends that are no node
_LONGEST_CHAIN = 8


@dataclass(frozen=True)
class End:
    """Where a group of nodes was tied to the rest: ``node`` is None at the border of the graph."""

    tensor: str
    node: Node | None
    kind: str  # the operator of the node, or input, output, initializer
    port: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return it with its node by its label."""
        return {
            "tensor": self.tensor,
            "node": self.node.label if self.node else None,
            "kind": self.kind,
        }


@dataclass(frozen=True)
class Group:
    """Nodes of one graph alone that hang together, with what became of them (or what they came for).

    ``fate``: folded (into ``into``, whose weights have changed), left out, constant (what they computed is stored now),
    shared (another node makes it now), replaced (by the groups ``by``), unused; of new ones: new, or replaces.
    """

    nodes: Sequence[Node]
    entries: Sequence[End]
    exits: Sequence[End]
    fate: str
    into: tuple[str, ...] = ()  # operators
    by: tuple[tuple[Node, ...], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it with nodes by their labels."""
        return {
            "nodes": [{"label": node.label, "operator": node.operator} for node in self.nodes],
            "chain": chain_text(self.nodes),
            "from": [end.as_json() for end in self.entries],
            "to": [end.as_json() for end in self.exits],
            "fate": self.fate,
            "into": list(self.into),
            "by": [[node.label for node in nodes] for nodes in self.by],
        }  # fmt: skip


def chain_text(nodes: Sequence[Node]) -> str:
    """Return operators in the order of the graph, e.g. ``Shape → Slice → Concat``; long ones in numbers."""
    shown = [node.operator for node in nodes if node.operator != _CONSTANT] or [_CONSTANT]
    runs = [(operator, len(list(run))) for operator, run in groupby(shown)]
    if len(runs) > _LONGEST_CHAIN:
        counts: dict[str, int] = {}
        for operator in shown:
            counts[operator] = counts.get(operator, 0) + 1
        runs = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        text = ", ".join(f"{operator} {TIMES}{count}" for operator, count in runs[:_LONGEST_CHAIN])
        return f"{len(shown)} nodes ({text}{', …' if len(runs) > _LONGEST_CHAIN else ''})"
    return " → ".join(
        f"{operator} {TIMES}{count}" if count > 1 else operator for operator, count in runs
    )


def _entries(nodes: Sequence[Node], body: Body) -> list[End]:
    """Return what a group takes from the rest; stored tensors only where nothing else comes in."""
    members, found = set(nodes), {}
    for node in nodes:
        for name in node.reads:
            maker = body.producers.get(name)
            if maker not in members:
                kind = maker.operator if maker else _STORED if name in body.initializers else _INPUT
                found[name] = End(name, maker, kind)
    moving = [end for end in found.values() if end.kind not in (_STORED, _CONSTANT)]
    return moving or list(found.values())


def _exits(nodes: Sequence[Node], body: Body) -> list[End]:
    members, found = set(nodes), []
    for name in (name for node in nodes for name in node.outputs if name):
        for taker in body.consumers.get(name, ()):
            if taker not in members:
                ports = [port for port, taken in enumerate(taker.inputs) if taken == name]
                found += [End(name, taker, taker.operator, port) for port in ports] or [
                    End(name, taker, taker.operator, -1)
                ]
        found += [
            End(name, None, _OUTPUT, port)
            for port, taken in enumerate(body.outputs)
            if taken == name
        ]
    return found


def fate_of(nodes: Sequence[Node], matching: Matching, changes: Mapping[Node, Change]) -> Group:
    """Find out what stands at the exits of a group now."""
    entries, exits = _entries(nodes, matching.first), _exits(nodes, matching.first)
    now = [tensor for end in exits if (tensor := _tensor_now(end, matching))]
    group = Group(nodes, entries, exits, "unused")
    if not now:
        return group
    makers = [matching.second.producers.get(tensor) for tensor in now]
    if all(is_stored(tensor, matching.second) for tensor in now):
        return replace(group, fate="constant")
    new = [maker for maker in makers if maker is not None and maker not in matching.back]
    if new:
        return replace(group, fate="replaced", by=_regions_of(new, matching))
    before = {matching.tensors.get(end.tensor) for end in entries}
    if not set(now) <= before:
        return replace(group, fate="shared", into=_operators(makers))
    fate, into = _folded_into(entries, exits, changes)
    return replace(group, fate=fate, into=into)


def _folded_into(
    entries: Sequence[End], exits: Sequence[End], changes: Mapping[Node, Change]
) -> tuple[str, tuple[str, ...]]:
    """Tell whose weights have taken up what a group did: those of the nodes before it, or else behind it."""
    for ends in (entries, exits):
        nodes = [end.node for end in ends if end.node is not None]
        if nodes and all(node in changes and changes[node].has_other_numbers for node in nodes):
            return "folded", _operators(nodes)
    return "left out", ()


def origin_of(nodes: Sequence[Node], matching: Matching, gone: Sequence[Group]) -> Group:
    """Find out what new nodes came for: in place of a group that is gone, or anew."""
    entries, exits = _entries(nodes, matching.second), _exits(nodes, matching.second)
    replaced = [group for group in gone if any(tuple(nodes) == by for by in group.by)]
    fate = "replaces" if replaced else "new"
    return Group(nodes, entries, exits, fate, by=tuple(tuple(group.nodes) for group in replaced))


def _tensor_now(end: End, matching: Matching) -> str:
    """Return the tensor that is taken at an exit in the second graph, "" where nothing is."""
    if end.node is None:
        outputs = matching.second.outputs
        return (
            end.tensor
            if end.tensor in outputs
            else outputs[end.port]
            if end.port < len(outputs)
            else ""
        )
    other = matching.nodes.get(end.node)
    return other.inputs[end.port] if other is not None and 0 <= end.port < len(other.inputs) else ""


def _regions_of(nodes: Iterable[Node], matching: Matching) -> tuple[tuple[Node, ...], ...]:
    wanted = set(nodes)
    return tuple(
        tuple(group) for group in regions(matching.come, matching.second) if wanted & set(group)
    )


def _operators(nodes: Iterable[Node | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node.operator for node in nodes if node is not None))
