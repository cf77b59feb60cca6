"""Matching of the nodes of two graphs with possibly different names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from buildsys.onnx_graphs.inspection.plain_graph import CONSTANT, Body, PlainNode


class Matching:
    """Pairs of equivalent nodes and tensors of two graphs.

    Nodes with the same operator match, in this order, by the name of an output, by their own name,
    by their inputs, and by the consumers of their outputs.
    """

    def __init__(self, first: Body, second: Body) -> None:
        self.first = first
        self.second = second
        self.nodes: dict[PlainNode, PlainNode] = {}
        self.back: dict[PlainNode, PlainNode] = {}
        self.tensors = {name: name for name in first.inputs if name in second.inputs}
        # renamed inputs in order, if both graphs have equally many
        alone = (
            [name for name in first.inputs if name not in second.inputs],
            [name for name in second.inputs if name not in first.inputs],
        )
        if len(alone[0]) == len(alone[1]):
            self.tensors.update(zip(*alone, strict=True))
        self._match_by_names()
        while self._match_by_inputs() or self._match_by_consumers():
            pass

    @property
    def removed(self) -> list[PlainNode]:
        """Nodes of the first graph alone."""
        return [node for node in self.first.nodes if node not in self.nodes]

    @property
    def added(self) -> list[PlainNode]:
        """Nodes of the second graph alone."""
        return [node for node in self.second.nodes if node not in self.back]

    def _pair(self, node: PlainNode, other: PlainNode) -> None:
        self.nodes[node], self.back[other] = other, node
        pairs = zip(node.outputs, other.outputs, strict=False)
        self.tensors.update((ours, theirs) for ours, theirs in pairs if ours)

    def _pair_if_similar(self, node: PlainNode, other: PlainNode | None) -> None:
        if other is None or other in self.back:
            return
        if node.operator == other.operator and len(node.outputs) == len(other.outputs):
            self._pair(node, other)

    def _match_by_names(self) -> None:
        """Pair nodes by the name of an output, then by unique name."""
        producers = self.second.producers
        for node in self.first.nodes:
            other = next((producers[name] for name in node.outputs if name in producers), None)
            self._pair_if_similar(node, other)
        unique: list[dict[str, PlainNode]] = []
        for nodes in (self.removed, self.added):
            counts = Counter(node.name for node in nodes)
            unique.append({node.name: node for node in nodes if counts[node.name] == 1})
        for name, node in unique[0].items():
            match = unique[1].get(name) if name else None
            if match is not None and node.operator == match.operator:
                self._pair(node, match)

    def _match_by_inputs(self) -> bool:
        """Pair nodes with the same operator and inputs, by similarity."""

        def similarity(node: PlainNode, other: PlainNode) -> tuple[bool, bool]:
            contents = [
                [*(body.stored.get(name, "") for name in side.inputs)]
                + [tensor.digest for tensor in side.constants]
                for side, body in ((node, self.first), (other, self.second))
            ]
            return node.attributes == other.attributes, contents[0] == contents[1]

        waiting: dict[tuple[str, ...], list[PlainNode]] = {}
        for other in self.added:
            inputs = (name for name in other.reads if name not in self.second.stored)
            waiting.setdefault((other.operator, *inputs), []).append(other)
        before = len(self.nodes)
        for node in self.removed:
            inputs = (name for name in node.reads if name not in self.first.stored)
            taken = [self.tensors.get(name, "") for name in inputs]
            candidates = waiting.get((node.operator, *taken), []) if all(taken) else []
            if candidates and (taken or node.operator == CONSTANT):
                best = max(candidates, key=partial(similarity, node))
                if taken or similarity(node, best) == (True, True):
                    candidates.remove(best)
                    self._pair(node, best)
        return len(self.nodes) > before

    def _match_by_consumers(self) -> bool:
        """Pair nodes with the same operator and consumers."""
        before = len(self.nodes)
        for node in reversed(self.removed):
            others = {self._maker(name, at) for at, name in enumerate(node.outputs) if name}
            other = others.pop() if len(others) == 1 else None
            self._pair_if_similar(node, other)
        return len(self.nodes) > before

    def _maker(self, name: str, at: int) -> PlainNode | None:
        """Find the second graph's only producer for all consumers of a tensor."""
        makers = set()
        for taker in self.first.consumers.get(name, ()):
            other = self.nodes.get(taker)
            for port in (port for port, taken in enumerate(taker.inputs) if taken == name):
                tensor = other.inputs[port] if other and port < len(other.inputs) else ""
                maker = self.second.producers.get(tensor)
                makers.add(maker if maker and maker.outputs.index(tensor) == at else None)
        return makers.pop() if len(makers) == 1 else None


def regions(nodes: Iterable[PlainNode], body: Body) -> list[list[PlainNode]]:
    """Group connected nodes, each in the order of the graph."""
    members = dict.fromkeys(nodes)
    groups_of: dict[PlainNode, list[PlainNode]] = {}
    for node in members:
        if node in groups_of:
            continue
        group: list[PlainNode] = []
        waiting = [node]
        while waiting:
            member = waiting.pop()
            if member not in groups_of:
                groups_of[member] = group
                group.append(member)
                near = [body.producers[name] for name in member.reads if name in body.producers]
                for name in member.outputs:
                    near += body.consumers.get(name, ())
                waiting += [other for other in near if other in members]
    order = {node: at for at, node in enumerate(members)}
    groups = {id(group): group for group in groups_of.values()}
    return [sorted(group, key=order.__getitem__) for group in groups.values()]
