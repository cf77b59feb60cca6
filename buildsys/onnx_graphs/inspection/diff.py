"""Differences between two graphs: nodes, initializers, opsets and interface."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import groupby, zip_longest
from typing import Any

from buildsys.onnx_graphs.inspection.graph import (
    CONSTANT,
    TIMES,
    Body,
    PlainModel,
    PlainNode,
    StoredTensor,
)

_LONGEST_CHAIN = 8


def compare(first: PlainModel, second: PlainModel) -> dict[str, Any]:
    """Compare two models; return all differences as JSON values."""
    models = first, second
    functions = [
        {name: "; ".join(map(_node_text, body.nodes)) for name, body in model.functions.items()}
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
        "opsets": _mapping_changes(first.opsets, second.opsets),
        "functions": _mapping_changes(functions[0], functions[1]),
        "interface": interface,
        "operators": _mapping_changes(first.operators, second.operators, absent=0),
        **compare_bodies(first.body, second.body),
    }
    nodes = [sum(model.operators.values()) for model in models]
    return {"nodes": nodes, "is_equal": not _is_filled(differences), **differences}


def compare_bodies(first: Body, second: Body) -> dict[str, Any]:
    """Compare nodes and initializers."""
    matching = Matching(first, second)
    changes = (_node_change(*pair, matching) for pair in matching.nodes.items())
    return {
        "gone": [_describe_group(nodes, first) for nodes in _groups(matching.removed, first)],
        "come": [_describe_group(nodes, second) for nodes in _groups(matching.added, second)],
        "changed": [change for change in changes if change],
        "initializers": _initializer_changes(first.initializers, second.initializers),
    }


class Matching:
    """Pairs of equivalent nodes and tensors of two graphs.

    Nodes with the same operator match by their first output, then by their name, then by their
    weights. The others match in the order of both graphs, first those with equal attributes.
    """

    def __init__(self, first: Body, second: Body) -> None:
        self.first, self.second = first, second
        self.nodes: dict[PlainNode, PlainNode] = {}
        keys: tuple[Callable[[PlainNode, Body], str], ...] = (
            lambda node, _: next(filter(None, node.outputs), ""),
            lambda node, _: node.name,
            lambda node, body: " ".join(
                filter(None, (*(body.stored.get(name) for name in node.inputs), *node.digests))
            ),
        )
        for key in keys:
            waiting = {(n.operator, text): n for n in self.added if (text := key(n, second))}
            for node in self.removed:
                if other := waiting.pop((node.operator, key(node, first)), None):
                    self.nodes[node] = other
        self._match_in_order(with_attributes=True)
        self._match_in_order(with_attributes=False)
        ends = list(zip(first.inputs, second.inputs, strict=False))
        for node, other in self.nodes.items():
            ends += zip(node.outputs, other.outputs, strict=False)
        self.tensors = {name: other_name for name, other_name in ends if name}

    @property
    def removed(self) -> list[PlainNode]:
        """Nodes of the first graph alone."""
        return [node for node in self.first.nodes if node not in self.nodes]

    @property
    def added(self) -> list[PlainNode]:
        """Nodes of the second graph alone."""
        matched = set(self.nodes.values())
        return [node for node in self.second.nodes if node not in matched]

    def _match_in_order(self, *, with_attributes: bool) -> None:
        """Match equal nodes between those that match already."""
        numbers = {node: number for number, pair in enumerate(self.nodes.items()) for node in pair}

        def text(node: PlainNode) -> str:
            attributes = node.attributes if with_attributes else ""
            return f"{numbers.get(node, node.operator)} {attributes}"

        first, second = ([*map(text, body.nodes)] for body in (self.first, self.second))
        matcher = SequenceMatcher(None, first, second, autojunk=False)
        for start, other_start, length in matcher.get_matching_blocks():
            for offset in range(length):
                node = self.first.nodes[start + offset]
                self.nodes.setdefault(node, self.second.nodes[other_start + offset])


def _groups(nodes: Iterable[PlainNode], body: Body) -> list[list[PlainNode]]:
    """Group connected nodes, each in the order of the graph."""
    members = dict.fromkeys(nodes)
    groups: list[list[PlainNode]] = []
    grouped: set[PlainNode] = set()
    for node in members:
        waiting, group = [node], set[PlainNode]()
        while waiting:
            member = waiting.pop()
            if member in members and member not in grouped:
                grouped.add(member)
                group.add(member)
                waiting += [body.producers[name] for name in member.reads if name in body.producers]
                waiting += (t for name in member.outputs for t in body.consumers.get(name, ()))
        if group:
            groups.append([member for member in members if member in group])
    return groups


def _describe_group(nodes: Sequence[PlainNode], body: Body) -> dict[str, Any]:
    """Describe connected nodes and their connections to the rest of the graph."""
    entries: dict[tuple[str, PlainNode | None], str] = {}
    exits: dict[tuple[str, PlainNode | None], str] = {}
    for node in nodes:
        for name in node.reads:
            maker = body.producers.get(name)
            if maker not in nodes and name not in body.stored:
                entries[name, maker] = "input"
        for name in filter(None, node.outputs):
            takers = [taker for taker in body.consumers.get(name, ()) if taker not in nodes]
            for end in (*takers, *([None] if name in body.outputs else [])):
                exits[name, end] = "output"
    return {
        "nodes": [{"label": node.label, "operator": node.operator} for node in nodes],
        "chain": _chain_text(nodes),
        **{
            side: [
                {"tensor": name, "node": n and n.label, "kind": n.operator if n else border}
                for (name, n), border in ends.items()
            ]
            for side, ends in (("from", entries), ("to", exits))
        },
    }


def _chain_text(nodes: Sequence[PlainNode]) -> str:
    """Write operators as ``Shape → Slice → Concat``."""
    operators = [node.operator for node in nodes if node.operator != CONSTANT] or [CONSTANT]
    runs = [(operator, len(list(run))) for operator, run in groupby(operators)]
    names = [f"{name} {TIMES}{count}" if count > 1 else name for name, count in runs]
    more = f" → … ({len(operators)} nodes)" if len(names) > _LONGEST_CHAIN else ""
    return " → ".join(names[:_LONGEST_CHAIN]) + more


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
            other_maker and other_maker not in matching.nodes.values()
        )
        if not is_in_group and matching.tensors.get(was, was) != now:
            inputs.append(end)
    bodies = {}
    for name in node.bodies.keys() & other.bodies.keys():
        inner = compare_bodies(node.bodies[name], other.bodies[name])
        if _is_filled(inner):
            bodies[name] = inner
    if not (attributes or weights or inputs or bodies or node.digests != other.digests):
        return None
    return {
        "label": other.label,
        "operator": other.operator,
        "was": node.label,
        "attributes": attributes,
        "weights": weights,
        "inputs": inputs,
        "bodies": bodies,
    }


def _node_text(node: PlainNode) -> str:
    inputs, outputs = ", ".join(node.inputs), ", ".join(node.outputs)
    return f"{node.operator}({inputs})→{outputs}{dict(node.attributes)}"


def _initializer_changes(
    first: Mapping[str, StoredTensor], second: Mapping[str, StoredTensor]
) -> dict[str, Any]:
    """Find removed, added and changed initializers; the same contents may have another name."""
    removed = [stored for name, stored in first.items() if name not in second]
    added = [stored for name, stored in second.items() if name not in first]
    renamed = {stored.digest for stored in removed} & {stored.digest for stored in added} - {""}
    return {
        "gone": [stored.as_json() for stored in removed if stored.digest not in renamed],
        "come": [stored.as_json() for stored in added if stored.digest not in renamed],
        "changed": [
            {"name": name, "from": str(stored), "to": str(second[name])}
            for name, stored in first.items()
            if name in second and stored.digest != second[name].digest
        ],
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
