"""Find the nodes of one graph again in another, whose names may have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from buildsys.onnx_graphs.inspection.plain_graph import Body, Node

_CONSTANT = "Constant"


class Matching:
    """Which node of ``first`` is which of ``second``, and which tensor.

    Told in this order: the same operator makes a tensor of the same name; it has the same name itself; it takes the
    same tensors; what takes its tensors is the same.
    """

    def __init__(self, first: Body, second: Body) -> None:
        self.first = first
        self.second = second
        self.nodes: dict[Node, Node] = {}
        self.back: dict[Node, Node] = {}
        self.tensors = {name: name for name in first.inputs if name in second.inputs}
        self._map_renamed_inputs()
        self._match_by_output()
        self._match_by_name()
        while self._match_by_inputs() or self._match_by_consumers():
            pass

    @property
    def gone(self) -> list[Node]:
        """The nodes that are only in the first graph."""
        return [node for node in self.first.nodes if node not in self.nodes]

    @property
    def come(self) -> list[Node]:
        """The nodes that are only in the second graph."""
        return [node for node in self.second.nodes if node not in self.back]

    def _map_renamed_inputs(self) -> None:
        """Take inputs whose names are in one graph only for each other, in their order, when there are equally many."""
        ours, theirs = self.first.inputs, self.second.inputs
        alone = (
            [name for name in ours if name not in theirs],
            [name for name in theirs if name not in ours],
        )
        if len(alone[0]) == len(alone[1]):
            self.tensors.update(zip(*alone, strict=True))

    def _pair(self, node: Node, other: Node) -> None:
        self.nodes[node], self.back[other] = other, node
        self.tensors.update(
            (ours, theirs)
            for ours, theirs in zip(node.outputs, other.outputs, strict=False)
            if ours
        )

    def _match_by_output(self) -> None:
        for node in self.first.nodes:
            other = next(
                (
                    self.second.producers[name]
                    for name in node.outputs
                    if name in self.second.producers
                ),
                None,
            )
            if other is not None and other not in self.back and _is_like(node, other):
                self._pair(node, other)

    def _match_by_name(self) -> None:
        named, others = _unique_names(self.gone), _unique_names(self.come)
        for name, node in named.items():
            other = others.get(name)
            if other is not None and node.operator == other.operator:
                self._pair(node, other)

    def _match_by_inputs(self) -> bool:
        """Pair nodes of one operator that take the same tensors, the most alike first."""
        waiting: dict[tuple[str, ...], list[Node]] = {}
        for other in self.come:
            waiting.setdefault((other.operator, *moving_inputs(other, self.second)), []).append(
                other
            )
        before = len(self.nodes)
        for node in self.gone:
            taken = [self.tensors.get(name, "") for name in moving_inputs(node, self.first)]
            candidates = waiting.get((node.operator, *taken), []) if all(taken) else []
            if candidates and (taken or node.operator == _CONSTANT):
                best = max(candidates, key=lambda other: self._likeness(node, other))
                if taken or self._likeness(node, best) == _ALIKE:
                    candidates.remove(best)
                    self._pair(node, best)
        return len(self.nodes) > before

    def _match_by_consumers(self) -> bool:
        """Pair nodes of one operator whose tensors are taken by the same nodes in the same place."""
        before = len(self.nodes)
        for node in reversed(self.gone):
            others = {self._maker(name, at) for at, name in enumerate(node.outputs) if name}
            other = others.pop() if len(others) == 1 else None
            if other is not None and other not in self.back and _is_like(node, other):
                self._pair(node, other)
        return len(self.nodes) > before

    def _maker(self, name: str, at: int) -> Node | None:
        """Return the node of the second graph that makes what all takers of a tensor take in its place."""
        found = set()
        for taker in self.first.consumers.get(name, ()):
            other = self.nodes.get(taker)
            for port in (port for port, taken in enumerate(taker.inputs) if taken == name):
                tensor = (
                    other.inputs[port] if other is not None and port < len(other.inputs) else ""
                )
                maker = self.second.producers.get(tensor)
                found.add(maker if maker and maker.outputs.index(tensor) == at else None)
        return found.pop() if len(found) == 1 else None

    def _likeness(self, node: Node, other: Node) -> tuple[bool, bool]:
        return (
            node.attributes == other.attributes,
            contents(node, self.first) == contents(other, self.second),
        )


_ALIKE = (True, True)


def moving_inputs(node: Node, body: Body) -> list[str]:
    """Return the tensors that a node takes and that are not stored with the graph."""
    return [name for name in node.reads if not is_stored(name, body)]


def is_stored(name: str, body: Body) -> bool:
    """Tell whether a tensor is an initializer or comes from a Constant."""
    maker = body.producers.get(name)
    return name in body.initializers or (maker is not None and maker.operator == _CONSTANT)


def contents(node: Node, body: Body) -> tuple[str, ...]:
    """Return the digests of what a node takes of stored tensors, by place; "" for all others."""
    return (
        *(content(name, body) for name in node.inputs),
        *(tensor.digest for tensor in node.constants),
    )


def content(name: str, body: Body) -> str:
    """Return the digest of a stored tensor, be it an initializer or of a Constant; "" where it is not known."""
    stored = body.initializers.get(name)
    if stored is not None:
        return stored.digest
    maker = body.producers.get(name)
    return (
        maker.constants[0].digest
        if maker is not None and maker.operator == _CONSTANT and maker.constants
        else ""
    )


def regions(nodes: Iterable[Node], body: Body) -> list[list[Node]]:
    """Return groups of nodes that hang together by their tensors, each in the order of the graph."""
    wanted = dict.fromkeys(nodes)
    found: dict[Node, list[Node]] = {}
    for node in wanted:
        if node in found:
            continue
        group: list[Node] = []
        waiting = [node]
        while waiting:
            member = waiting.pop()
            if member not in found:
                found[member] = group
                group.append(member)
                waiting += [near for near in _neighbours(member, body) if near in wanted]
    order = {node: at for at, node in enumerate(wanted)}
    groups = {id(group): group for group in found.values()}
    return [sorted(group, key=order.__getitem__) for group in groups.values()]


def _neighbours(node: Node, body: Body) -> Iterator[Node]:
    yield from (body.producers[name] for name in node.reads if name in body.producers)
    for name in node.outputs:
        yield from body.consumers.get(name, ())


def _is_like(node: Node, other: Node) -> bool:
    return node.operator == other.operator and len(node.outputs) == len(other.outputs)


def _unique_names(nodes: Iterable[Node]) -> dict[str, Node]:
    listed = [node for node in nodes if node.name]
    counts = Counter(node.name for node in listed)
    return {node.name: node for node in listed if counts[node.name] == 1}
