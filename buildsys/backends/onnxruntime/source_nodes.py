"""Source nodes of the nodes of an optimized graph.

ONNX Runtime keeps the names of nodes that it does not change, and of the tensors that a fused node
returns. Only its convolutions for blocked layouts (NCHWc) have new tensors. They are named
after the source tensor that they computed when their layout changed, and later take in the addition
and the activation that follow. An inserted node without a known tensor has the nodes of the next
one with known tensors. Seen in ONNX Runtime 1.31.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_CAST = "InsertedPrecisionFreeCast_"  # prefix of the fp32 copy of a tensor
_BLOCKED = "_nchwc"  # suffix of a blocked convolution's name
_REORDERS = ("ReorderInput", "ReorderOutput")  # of memory; they compute nothing
_ADDITIONS = ("Add", "Sum")
_SUM = 3  # the input of a blocked convolution that is added to its result
_MOST_NODES = 50  # of one node
_FARTHEST = 8  # inserted nodes in a row


def source_nodes(source: Any, engine: Any) -> dict[str, list[str]]:
    """Return engine node -> nodes of ``source``, without unchanged nodes.

    Both are ONNX graphs; nodes inside of their subgraphs are left out.
    """
    nodes = list(source.node)
    matches = _Matches(nodes, engine)
    names = [node.name or next(iter(node.output), "") for node in nodes]
    found = {
        node.name: [names[one] for one in sorted(own)][:_MOST_NODES]
        for node, own in zip(engine.node, matches.found(), strict=True)
    }
    return {name: own for name, own in found.items() if name and own != [name]}


def _tensor(name: str) -> str:
    """Return the source tensor that a node computes, of fp16 on a CPU in fp32."""
    return name.removeprefix(_CAST)


class _Matches:
    """Matching nodes of two graphs; source nodes by their index."""

    def __init__(self, source: Sequence[Any], engine: Any) -> None:
        self._source = source
        self._engine = list(engine.node)
        self._named = {node.name: n for n, node in enumerate(source) if node.name}
        self._producers = {o: n for n, node in enumerate(source) for o in node.output if o}
        self._readers: dict[str, list[int]] = {}
        for n, node in enumerate(source):
            for name in node.input:
                self._readers.setdefault(name, []).append(n)
        self._kept = {_tensor(name) for node in self._engine for name in node.output}
        self._kept |= {one.name for one in (*engine.input, *engine.initializer)}
        self._owned: set[int] = set()

    def found(self) -> list[list[int]]:
        """Return the source nodes of each node of the engine."""
        own = [self._same(node) for node in self._engine]
        for node, mine in zip(self._engine, own, strict=True):
            if node.op_type not in _REORDERS:
                outputs = map(_tensor, node.output)
                ends = (self._producers[name] for name in outputs if name in self._producers)
                self._take_before([*mine, *ends], mine)
        readers = {name: n for n, node in enumerate(self._engine) for name in node.input}
        return [
            [] if node.op_type in _REORDERS else self._of_next(n, own, readers)
            for n, node in enumerate(self._engine)
        ]

    def _same(self, node: Any) -> list[int]:
        """Return the source node of this name, or a blocked convolution's nodes."""
        n = self._named.get(node.name)
        if n is not None and self._source[n].op_type == node.op_type:
            return self._take(n)
        tensor = node.name.removesuffix(_BLOCKED)
        if tensor == node.name or tensor not in self._producers:
            return []
        current = self._producers[tensor]
        mine = self._take(current)
        activation = next((a.s.decode() for a in node.attribute if a.name == "activation"), "")
        steps: list[tuple[str, ...]] = (
            [_ADDITIONS] if len(node.input) > _SUM and node.input[_SUM] else []
        )
        if activation and (steps or self._source[current].op_type != activation):
            steps.append((activation,))
        for operators in steps:  # in the same kernel
            following = (r for o in self._source[current].output for r in self._readers.get(o, ()))
            free = (r for r in following if self._source[r].op_type in operators)
            current = next((r for r in free if r not in self._owned), -1)
            if current < 0:
                break
            mine += self._take(current)
        return mine

    def _take(self, n: int) -> list[int]:
        if n in self._owned:
            return []
        self._owned.add(n)
        return [n]

    def _take_before(self, starts: Sequence[int], mine: list[int]) -> None:
        """Add the nodes before ``starts`` up to tensors of the engine."""
        waiting, seen = list(starts), set()
        while waiting:
            n = waiting.pop()
            if n in seen or (n in self._owned and n not in mine):
                continue
            seen.add(n)
            mine += self._take(n)
            names = (name for name in self._source[n].input if name not in self._kept)
            waiting += [self._producers[name] for name in names if name in self._producers]

    def _of_next(self, n: int, own: Sequence[list[int]], readers: Mapping[str, int]) -> list[int]:
        """Return the source nodes of a node or its nearest successor."""
        for _ in range(_FARTHEST):
            if own[n]:
                break
            following = (readers[name] for name in self._engine[n].output if name in readers)
            n = next(following, n)
        return own[n]
