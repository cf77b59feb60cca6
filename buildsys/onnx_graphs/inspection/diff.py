"""Differences between two graphs: nodes, shapes, initializers, opsets and interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from typing import Any

from buildsys.onnx_graphs.inspection.node_matching import Matching, regions
from buildsys.onnx_graphs.inspection.plain_graph import (
    CONSTANT,
    TIMES,
    Body,
    PlainModel,
    PlainNode,
    StoredTensor,
)

_LONGEST_CHAIN = 8
_NOT_WEIGHTS = ("int32", "bool", "string")  # indices, flags


@dataclass(frozen=True)
class _Connection:
    """A connection of a group to the rest of its graph."""

    tensor: str
    node: PlainNode | None
    kind: str  # the operator of the node, or input, output, initializer
    port: int = 0


@dataclass(frozen=True)
class _NodeGroup:
    """Connected nodes of one graph without match, and their counterpart.

    ``outcome`` of removed nodes: folded (into the weights of ``into``), left out, constant (their
    result is stored), shared (another node computes it), replaced (by the groups ``by``), unused.
    ``outcome`` of added nodes: new, or replaces.
    """

    nodes: Sequence[PlainNode]
    entries: Sequence[_Connection]
    exits: Sequence[_Connection]
    outcome: str
    into: Sequence[PlainNode | None] = ()
    by: Sequence[Sequence[PlainNode]] = ()

    def as_json(self) -> dict[str, Any]:
        """Write it with nodes as their labels."""
        entries, exits = (
            [
                {"tensor": end.tensor, "node": end.node and end.node.label, "kind": end.kind}
                for end in ends
            ]
            for ends in (self.entries, self.exits)
        )
        return {
            "nodes": [{"label": node.label, "operator": node.operator} for node in self.nodes],
            "chain": _chain_text(self.nodes),
            "from": entries,
            "to": exits,
            "fate": self.outcome,
            "into": list(dict.fromkeys(node.operator for node in self.into if node is not None)),
            "by": [[node.label for node in nodes] for nodes in self.by],
        }


def compare(first: PlainModel, second: PlainModel) -> dict[str, Any]:
    """Compare two models; return all differences as JSON values."""
    models = first, second
    headers = [{"ir_version": model.ir_version, "producer": model.producer} for model in models]
    functions = [
        {
            function.name: "; ".join(
                f"{node.operator}({', '.join(node.inputs)})→{', '.join(node.outputs)}"
                f"{dict(node.attributes)}"
                for node in function.nodes
            )
            for function in model.functions
        }
        for model in models
    ]
    interface = {}
    for side in ("inputs", "outputs"):
        ours, theirs = (
            {name: str(model.body.value(name)) for name in getattr(model.body, side)}
            for model in models
        )
        changes = _mapping_changes(ours, theirs).items()
        interface[side] = [{"name": name, "from": was, "to": now} for name, (was, now) in changes]
    differences = {
        "header": _mapping_changes(headers[0], headers[1]),
        "opsets": _mapping_changes(first.opsets, second.opsets),
        "functions": _mapping_changes(functions[0], functions[1]),
        "interface": interface,
        "operators": _mapping_changes(first.operators, second.operators, absent=0),
        **compare_bodies(first.body, second.body),
    }
    nodes = [sum(model.operators.values()) for model in models]
    return {"nodes": nodes, "is_equal": not _is_filled(differences), **differences}


def compare_bodies(first: Body, second: Body) -> dict[str, Any]:
    """Compare nodes, shapes and initializers."""
    matching = Matching(first, second)
    changes = {
        node: change
        for node, other in matching.nodes.items()
        if (change := _node_change(node, other, matching))
    }
    gone = regions(matching.removed, first)
    removed = [_removed_group(nodes, matching, changes) for nodes in gone]
    added = []
    for nodes in regions(matching.added, second):
        replaced = [group.nodes for group in removed if nodes in group.by]
        outcome = "replaces" if replaced else "new"
        added.append(_NodeGroup(nodes, *_connections(nodes, second), outcome, by=replaced))
    shapes = []
    for name, other_name in matching.tensors.items():
        was, now = first.value(name), second.value(other_name)
        sizes = [value.shape if value else None for value in (was, now)]
        if str(was) != str(now) and all(shape is not None and None not in shape for shape in sizes):
            change = {"tensor": other_name, "was_called": name, "from": str(was), "to": str(now)}
            shapes.append(change)
    return {
        "gone": [group.as_json() for group in removed],
        "come": [group.as_json() for group in added],
        "changed": list(changes.values()),
        "renamed": [
            {"from": node.label, "to": other.label, "operator": node.operator}
            for node, other in matching.nodes.items()
            if node.label != other.label
        ],
        "shapes": shapes,
        "initializers": _initializer_changes(first.initializers, second.initializers),
    }


def _node_change(node: PlainNode, other: PlainNode, matching: Matching) -> dict[str, Any] | None:
    """Compare matched nodes; None without differences."""
    attributes = _mapping_changes(node.attributes, other.attributes)
    weights, inputs = [], []  # stored inputs with other contents, inputs from another matched node
    ours, theirs = matching.first, matching.second
    for port, (was, now) in enumerate(zip_longest(node.inputs, other.inputs, fillvalue="")):
        end = {"port": port, "from": was, "to": now}
        if now in theirs.stored and (was in ours.stored or not was):
            if ours.stored.get(was, "") != theirs.stored[now]:
                weights.append(end)
            continue
        maker, other_maker = ours.producers.get(was), theirs.producers.get(now)
        is_in_group = (maker and maker not in matching.nodes) or (
            other_maker and other_maker not in matching.back
        )
        if not is_in_group and matching.tensors.get(was, was) != now:
            inputs.append(end)
    bodies = {}
    for name in (name for name in node.bodies if name in other.bodies):
        inner = compare_bodies(node.bodies[name], other.bodies[name])
        if _is_filled(inner):
            bodies[name] = inner
    constants = [[tensor.digest for tensor in side.constants] for side in (node, other)]
    if not (attributes or weights or inputs or bodies or constants[0] != constants[1]):
        return None
    dtypes = [value.dtype for end in weights if (value := theirs.value(str(end["to"])))]
    return {
        "label": other.label,
        "operator": other.operator,
        "was": node.label,
        "attributes": attributes,
        "weights": weights,
        "numbers": any("int64" not in d and d not in _NOT_WEIGHTS for d in dtypes),
        "inputs": inputs,
        "bodies": bodies,
    }


def _removed_group(
    nodes: Sequence[PlainNode], matching: Matching, changes: Mapping[PlainNode, dict[str, Any]]
) -> _NodeGroup:
    """Find the counterpart of a group of removed nodes."""
    entries, exits = _connections(nodes, matching.first)
    now = []  # the second graph's tensors at the exits
    for end in exits:
        other = matching.nodes.get(end.node) if end.node else None
        ports = other.inputs if other else () if end.node else matching.second.outputs
        if end.node is None and end.tensor in ports:
            now.append(end.tensor)
        elif 0 <= end.port < len(ports) and ports[end.port]:
            now.append(ports[end.port])
    group = _NodeGroup(nodes, entries, exits, "unused")
    if not now:
        return group
    if all(tensor in matching.second.stored for tensor in now):
        return replace(group, outcome="constant")
    makers = [matching.second.producers.get(tensor) for tensor in now]
    new = {maker for maker in makers if maker is not None and maker not in matching.back}
    if new:
        added = regions(matching.added, matching.second)
        by = [region for region in added if new & set(region)]
        return replace(group, outcome="replaced", by=by)
    before = {matching.tensors.get(end.tensor) for end in entries}
    if not set(now) <= before:
        return replace(group, outcome="shared", into=makers)
    for ends in (entries, exits):  # folded into the nodes before the group, or else after it
        near = [end.node for end in ends if end.node is not None]
        if near and all(node in changes and changes[node]["numbers"] for node in near):
            return replace(group, outcome="folded", into=near)
    return replace(group, outcome="left out")


def _connections(
    nodes: Sequence[PlainNode], body: Body
) -> tuple[list[_Connection], list[_Connection]]:
    """Find the inputs (preferably not stored) and outputs of a group."""
    members = set(nodes)
    entries: dict[str, _Connection] = {}
    exits = []
    for node in nodes:
        for name in node.reads:
            maker = body.producers.get(name)
            if maker not in members:
                outer = "initializer" if name in body.initializers else "input"
                entries[name] = _Connection(name, maker, maker.operator if maker else outer)
        for name in filter(None, node.outputs):
            for taker in body.consumers.get(name, ()):
                if taker not in members:
                    ports = [port for port, taken in enumerate(taker.inputs) if taken == name]
                    # -1: read only by a body of the taker
                    for port in ports or [-1]:
                        exits.append(_Connection(name, taker, taker.operator, port))
            ports = [port for port, taken in enumerate(body.outputs) if taken == name]
            exits += [_Connection(name, None, "output", port) for port in ports]
    activations = [end for end in entries.values() if end.kind not in ("initializer", CONSTANT)]
    return activations or list(entries.values()), exits


def _chain_text(nodes: Sequence[PlainNode]) -> str:
    """Write operators as ``Shape → Slice → Concat``, or as counts."""
    operators = [node.operator for node in nodes if node.operator != CONSTANT] or [CONSTANT]
    runs = [(operator, len(list(run))) for operator, run in groupby(operators)]
    if len(runs) > _LONGEST_CHAIN:
        runs = sorted(Counter(operators).items(), key=lambda item: (-item[1], item[0]))
        text = ", ".join(f"{operator} {TIMES}{count}" for operator, count in runs[:_LONGEST_CHAIN])
        return f"{len(operators)} nodes ({text}{', …' if len(runs) > _LONGEST_CHAIN else ''})"
    return " → ".join(f"{name} {TIMES}{count}" if count > 1 else name for name, count in runs)


def _initializer_changes(
    first: Mapping[str, StoredTensor], second: Mapping[str, StoredTensor]
) -> dict[str, Any]:
    """Find removed, added, changed and renamed initializers."""
    removed = {name: stored for name, stored in first.items() if name not in second}
    added = {name: stored for name, stored in second.items() if name not in first}
    by_content: dict[str, list[str]] = {}
    for name, stored in added.items():
        by_content.setdefault(stored.digest, []).append(name)
    renamed = []
    for name, stored in list(removed.items()):
        if stored.digest and by_content.get(stored.digest):
            other = by_content[stored.digest].pop(0)
            renamed.append({"from": name, "to": other})
            del removed[name], added[other]

    changed = [
        {"name": name, "from": str(stored), "to": str(second[name])}
        for name, stored in first.items()
        if name in second and stored.digest != second[name].digest
    ]
    return {
        "gone": [stored.as_json() for stored in removed.values()],
        "come": [stored.as_json() for stored in added.values()],
        "changed": changed,
        "renamed": renamed,
        "count": [len(first), len(second)],
        "bytes": [sum(stored.bytes for stored in side.values()) for side in (first, second)],
    }


def _mapping_changes(
    first: Mapping[str, Any], second: Mapping[str, Any], absent: int | None = None
) -> dict[str, list[Any]]:
    pairs = {
        name: [first.get(name, absent), second.get(name, absent)] for name in (*first, *second)
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _is_filled(value: Any) -> bool:
    """Check for a part with differences. Counts and sizes are none."""
    if isinstance(value, Mapping):
        return any(
            _is_filled(entry) for name, entry in value.items() if name not in ("count", "bytes")
        )
    return bool(value)
