"""Multiply-accumulates of convolutions, matrix products and recurrent layers, from their shapes.

Element-wise operators, normalizations, poolings and resizes count as 0: they cost memory traffic.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from buildsys.onnx_graphs.inspection.graph import Body, PlainNode

SizesOf = Callable[[str], tuple[int, ...]]


@dataclass
class Macs:
    """The counts of a graph."""

    by_operator: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)  # nodes
    unknown: Counter[str] = field(default_factory=Counter)  # nodes with unknown shapes
    opaque: Counter[str] = field(default_factory=Counter)  # nodes of unknown operators
    loops: int = 0  # counted once, as the number of iterations is unknown

    @property
    def total(self) -> int:
        """Sum over all operators."""
        return sum(self.by_operator.values())

    @property
    def is_complete(self) -> bool:
        """True if nothing is missing from the total."""
        return not (self.unknown or self.opaque or self.loops)


def count_macs(body: Body, outer: Sequence[Body] = ()) -> Macs:
    """Count a graph. An If counts as its larger branch, a loop once."""
    total, scopes = Macs(), (body, *outer)
    for node in body.nodes:
        if node.bodies:
            inner = [count_macs(part, scopes) for part in node.bodies.values()]
            largest = max(inner, key=lambda macs: macs.total)
            for name in ("by_operator", "counted", "unknown", "opaque"):
                getattr(total, name).update(getattr(largest, name))
            total.loops += largest.loops
            total.loops += node.operator in ("Loop", "Scan") and largest.total > 0
            continue
        macs = _node_macs(node, scopes)
        if macs:
            total.by_operator[node.operator] += macs
            total.counted[node.operator] += 1
        elif macs is None:
            kind = total.unknown if _own_name(node.operator) in _COUNTS else total.opaque
            kind[node.operator] += 1
    return total


def macs_per_node(body: Body, outer: Sequence[Body] = ()) -> Iterator[int | None]:
    """Yield the count of every node, in the order of ``Body.walk``."""
    scopes = (body, *outer)
    for node in body.nodes:
        yield None if node.bodies else _node_macs(node, scopes)
        for inner in node.bodies.values():
            yield from macs_per_node(inner, scopes)


def _node_macs(node: PlainNode, scopes: Sequence[Body]) -> int | None:
    """Count one node; None if it is unknown."""
    count = _COUNTS.get(_own_name(node.operator))
    if count is None:
        is_onnx = "::" not in node.operator or node.operator.startswith("ai.onnx")
        return 0 if is_onnx or _WITHOUT_MACS.fullmatch(node.operator) else None
    try:
        return count(node, partial(_sizes, scopes))
    except LookupError:
        return None


def _sizes(scopes: Sequence[Body], name: str) -> tuple[int, ...]:
    """Look up the numeric shape of a tensor in nested graphs.

    Raises: LookupError: the shape is not completely known.
    """
    value = next(filter(None, (body.value(name) for body in scopes)), None)
    shape = value.shape if value else None
    sizes = tuple(size for size in shape or () if isinstance(size, int))
    if shape is None or len(sizes) < len(shape):
        raise LookupError(name)
    return sizes


def _convolution(node: PlainNode, of: SizesOf) -> int:
    weights = 3 if node.operator.endswith("QLinearConv") else 1
    return math.prod(of(node.outputs[0])) * math.prod(of(node.inputs[weights])[1:])


def _matrix_product(node: PlainNode, of: SizesOf) -> int:
    first = of(node.inputs[0])
    transposed = node.attributes.get("transA", "0") not in ("0", "")
    return math.prod(of(node.outputs[0])) * first[-2 if transposed else -1]


def _einsum(node: PlainNode, of: SizesOf) -> int:
    """Multiply all index sizes, for two operands."""
    terms = node.attributes.get("equation", "").partition("->")[0].replace(" ", "").split(",")
    if len(terms) == 1:
        return 0
    if len(terms) != 2 or not all(re.fullmatch("[A-Za-z]+", term) for term in terms):
        raise LookupError(node.label)
    sizes: dict[str, int] = {}
    for term, name in zip(terms, node.inputs, strict=False):
        sizes.update(zip(term, of(name), strict=False))
    return math.prod(sizes.values())


def _attention(node: PlainNode, of: SizesOf) -> int:
    """Count query-key and weight-value products of ONNX's own operator."""
    keys = of(node.inputs[1])[-2]
    if len(node.inputs) > 4 and node.inputs[4]:  # keys of earlier steps
        keys += of(node.inputs[4])[-2]
    return (math.prod(of(node.inputs[0])) + math.prod(of(node.outputs[0]))) * keys


# operators of ONNX and of ONNX Runtime's optimizer, without their domain
_COUNTS: Mapping[str, Callable[[PlainNode, SizesOf], int]] = {
    **dict.fromkeys(
        ("Conv", "FusedConv", "NhwcFusedConv", "ConvInteger", "QLinearConv", "DeformConv"),
        _convolution,
    ),
    "ConvTranspose": lambda node, of: (
        math.prod(of(node.inputs[0])) * math.prod(of(node.inputs[1])[1:])
    ),
    **dict.fromkeys(
        ("Gemm", "FusedGemm", "MatMul", "FusedMatMul", "MatMulInteger", "QLinearMatMul"),
        _matrix_product,
    ),
    "Einsum": _einsum,
    # weights and recurrent weights, once per step and batch item
    **dict.fromkeys(("LSTM", "GRU", "RNN"), lambda node, of: math.prod(of(node.inputs[0])[:2]) * (
        math.prod(of(node.inputs[1])) + math.prod(of(node.inputs[2]))
    )),
    "Attention": _attention,
}  # fmt: skip
COUNTED = tuple(_COUNTS)
_WITHOUT_MACS = re.compile(
    r"com\.microsoft(\.nchwc)?::(Quick)?(Gelu|FastGelu|BiasGelu|QuickGelu|ReorderInput|"
    r"ReorderOutput|SkipLayerNormalization|LayerNormalization|MaxPool|AveragePool|GlobalMaxPool|"
    r"GlobalAveragePool|Upsample|QLinear\w+|DynamicQuantizeLinear|Dequantize\w*|Quantize\w*)"
)


def _own_name(operator: str) -> str:
    """Strip an operator of the domain of ONNX or ONNX Runtime."""
    domain, _, name = operator.rpartition("::")
    return name if domain in ("", "com.microsoft", "com.microsoft.nchwc") else operator


def linear_macs(macs_at: Callable[[int], int | None], size: int) -> tuple[int, int] | None:
    """Fit a rest and a slope to counts at multiples of a size; None if they are not linear."""
    first, second, fifth = (macs_at(size * factor) for factor in (1, 2, 5))
    if first is None or second is None or fifth is None or (second - first) % size:
        return None
    slope = (second - first) // size
    return (first - slope * size, slope) if fifth == first + 4 * size * slope else None
