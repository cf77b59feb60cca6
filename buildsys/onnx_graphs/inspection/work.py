"""Work of a graph and of parts of it: multiply-accumulates, and the bytes that must move.

A part reads every tensor from outside once, and writes every result that is used outside once: what
happens inside may stay in registers and caches. So the bytes of a whole graph are its weights,
inputs and outputs.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from onnx import ModelProto

from buildsys.onnx_graphs.inspection.describe import inline_for_count, macs_per_node
from buildsys.onnx_graphs.inspection.graph import CONSTANT, Body, PlainNode, Value, plain_model

# they read no more of their first input than they write
_PICKS = ("Gather", "GatherElements", "GatherND", "Shape", "Size", "Slice")
UNKNOWN_SIZES = "tensors of unknown sizes"


class Work(NamedTuple):
    """The work of a part, without what cannot be counted."""

    macs: int
    bytes: int
    left_out: Mapping[str, int]  # operator -> nodes without MACs, or UNKNOWN_SIZES


def work_of(model: ModelProto, dims: Mapping[str, int]) -> "GraphWork":
    """Read the work of a model at the sizes ``dims`` of dynamic dimensions."""
    return GraphWork(plain_model(inline_for_count(model), dims).body)


class GraphWork:
    """The work of a graph and of its parts."""

    def __init__(self, body: Body) -> None:
        self._macs = {n: macs for n, macs in macs_per_node(body) if n.operator != CONSTANT}
        self._nodes = {node.label: node for node in self._macs}
        self._outputs = frozenset(body.outputs)
        self._values: dict[str, Value] = {}
        self._stored: set[str] = set()
        self._readers: dict[str, list[PlainNode]] = {}
        for part in (body, *(inner for node in self._macs for inner in node.bodies.values())):
            self._values |= {**part.initializers, **part.values}
            self._stored |= {*part.stored}
        for node in self._macs:
            for name in node.inputs:
                self._readers.setdefault(name, []).append(node)
        self._sources = self._stored | {*body.inputs}

    def whole(self, weight_bits: int | None) -> Work:
        """Add up the graph; ``weight_bits`` limits the floats of weights, None: as stored."""
        return self._work(self._macs, self._sources, self._stored, weight_bits)

    def part(self, names: Iterable[str], bits: int | None) -> Work | None:
        """Add up nodes by name, None if a figure is unknown; ``bits`` limits all floats."""
        nodes = {self._nodes[name] for name in names if name in self._nodes}
        made = {name for node in nodes for name in node.outputs}
        work = self._work(nodes, self._values.keys() - made, self._values, bits)
        return work if nodes and not work.left_out else None

    def _work(
        self,
        nodes: Collection[PlainNode],
        sources: Collection[str],
        limited: Collection[str],
        bits: int | None,
    ) -> Work:
        macs, left_out, moved = 0, Counter[str](), dict[str, int]()

        def size(name: str) -> int:
            value = self._values.get(name)
            sizes = [n for n in (value and value.shape) or () if isinstance(n, int)]
            if value is None or value.shape is None or len(sizes) != len(value.shape):
                left_out[UNKNOWN_SIZES] += 1
                return 0
            width = (8 if value.dtype == "bool" else bits_of(value.dtype)) or 0  # text has none
            if bits and name in limited and "float" in value.dtype:
                width = min(width, bits)
            return -(-math.prod(sizes) * width // 8)

        for node in nodes:
            own = self._macs[node]
            if own is None and node.operator != "If":  # its branches count, those of loops once
                left_out[node.operator] += 1
            macs += own or 0
            for place, name in enumerate(node.inputs):
                if name in sources:
                    is_picked = place == 0 and node.operator in _PICKS
                    taken = min(size(name), size(node.outputs[0]) if is_picked else math.inf)
                    moved[name] = max(int(taken), moved.get(name, 0))
            for name in node.outputs:
                readers = self._readers.get(name, ())
                if name in self._outputs or any(reader not in nodes for reader in readers):
                    moved[name] = size(name)
        return Work(macs, sum(moved.values()), dict(left_out))


def bits_of(name: str) -> int | None:
    """Read the width in the name of a type or precision: float8e4m3fn, fp16."""
    number = re.search(r"\d+", name)
    return int(number[0]) if number else None
