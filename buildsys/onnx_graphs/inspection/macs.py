"""Multiply-accumulates of convolutions, matrix products and recurrent layers, from their shapes.

Element-wise operators, normalizations, poolings and resizes count as 0: they cost memory traffic.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from buildsys.onnx_graphs.inspection.plain_graph import Body, PlainNode, Value

Lookup = Callable[[str], "Value | None"]


class UnknownShapeError(Exception):
    """A shape needed for a count is unknown."""


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

    def add(self, other: Macs) -> None:
        """Add the counts of another part of the graph."""
        for name in ("by_operator", "counted", "unknown", "opaque"):
            getattr(self, name).update(getattr(other, name))
        self.loops += other.loops


def nothing(name: str) -> None:
    """Look up a tensor outside the outermost graph."""
    del name


def count_macs(body: Body, outer: Lookup = nothing) -> Macs:
    """Count a graph. An If counts as its larger branch, a loop once."""
    found = Macs()
    lookup = within(body, outer)
    for node in body.nodes:
        if node.bodies:
            inner = [count_macs(part, lookup) for part in node.bodies.values()]
            largest = max(inner, key=lambda macs: macs.total)
            found.add(largest)
            found.loops += node.operator in ("Loop", "Scan") and largest.total > 0
            continue
        macs = node_macs(node, lookup)
        if macs:
            found.by_operator[node.operator] += macs
            found.counted[node.operator] += 1
        elif macs is None:
            kind = found.unknown if _plain(node.operator) in _COUNTS else found.opaque
            kind[node.operator] += 1
    return found


def within(body: Body, outer: Lookup) -> Lookup:
    """Return a lookup of tensors in a graph and its enclosing graphs."""
    return lambda name: body.value(name) or outer(name)


def node_macs(node: PlainNode, lookup: Lookup) -> int | None:
    """Return the count of one node, None if it is unknown."""
    count = _COUNTS.get(_plain(node.operator))
    if count is None:
        is_onnx = "::" not in node.operator or node.operator.startswith("ai.onnx")
        return 0 if is_onnx or _WITHOUT_MACS.fullmatch(node.operator) else None
    try:
        return count(_Shapes(node, lookup))
    except UnknownShapeError:
        return None


class _Shapes:
    """The numeric shapes of a node's inputs and outputs."""

    def __init__(self, node: PlainNode, lookup: Lookup) -> None:
        self.node = node
        self._lookup = lookup

    def of_input(self, index: int) -> tuple[int, ...]:
        return self._shape(self.node.inputs[index] if index < len(self.node.inputs) else "")

    def of_output(self, index: int = 0) -> tuple[int, ...]:
        return self._shape(self.node.outputs[index])

    def _shape(self, name: str) -> tuple[int, ...]:
        value = self._lookup(name)
        shape = value.shape if value else None
        sizes = tuple(size for size in shape or () if isinstance(size, int))
        if shape is None or len(sizes) < len(shape):
            raise UnknownShapeError(name)
        return sizes

    def flag(self, name: str) -> bool:
        return self.node.attributes.get(name, "0") not in ("0", "")


def _convolution(weights: int) -> Callable[[_Shapes], int]:
    return lambda shapes: math.prod(shapes.of_output()) * math.prod(shapes.of_input(weights)[1:])


def _matrix_product(shapes: _Shapes) -> int:
    first = shapes.of_input(0)
    if not first:
        raise UnknownShapeError(shapes.node.inputs[0])
    return math.prod(shapes.of_output()) * first[-2 if shapes.flag("transA") else -1]


def _einsum(shapes: _Shapes) -> int:
    """Return the product of all index sizes, for two operands."""
    equation = shapes.node.attributes.get("equation", "")
    terms = equation.partition("->")[0].replace(" ", "").split(",")
    if len(terms) == 1:
        return 0
    if len(terms) != 2 or not all(re.fullmatch("[A-Za-z]+", term) for term in terms):
        raise UnknownShapeError(shapes.node.label)
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        sizes.update(zip(term, shapes.of_input(index), strict=False))
    return math.prod(sizes.values())


def _attention(shapes: _Shapes) -> int:
    """Count query-key and weight-value products of ONNX's own operator."""
    keys = shapes.of_input(1)[-2]
    if len(shapes.node.inputs) > 4 and shapes.node.inputs[4]:  # keys of earlier steps
        keys += shapes.of_input(4)[-2]
    return (math.prod(shapes.of_input(0)) + math.prod(shapes.of_output())) * keys


# operators of ONNX and of ONNX Runtime's optimizer, without their domain
_COUNTS: Mapping[str, Callable[[_Shapes], int]] = {
    "Conv": _convolution(1), "FusedConv": _convolution(1), "NhwcFusedConv": _convolution(1),
    "ConvInteger": _convolution(1), "QLinearConv": _convolution(3), "DeformConv": _convolution(1),
    "ConvTranspose": lambda node: math.prod(node.of_input(0)) * math.prod(node.of_input(1)[1:]),
    "Gemm": _matrix_product, "FusedGemm": _matrix_product,
    "MatMul": _matrix_product, "FusedMatMul": _matrix_product, "MatMulInteger": _matrix_product,
    "QLinearMatMul": _matrix_product,
    "Einsum": _einsum,
    # weights and recurrent weights, once per step and batch item
    **dict.fromkeys(("LSTM", "GRU", "RNN"), lambda node: math.prod(node.of_input(0)[:2]) * (
        math.prod(node.of_input(1)) + math.prod(node.of_input(2))
    )),
    "Attention": _attention,
}  # fmt: skip
COUNTED = tuple(_COUNTS)
_WITHOUT_MACS = re.compile(
    r"com\.microsoft(\.nchwc)?::(Quick)?(Gelu|FastGelu|BiasGelu|QuickGelu|ReorderInput|"
    r"ReorderOutput|SkipLayerNormalization|LayerNormalization|MaxPool|AveragePool|GlobalMaxPool|"
    r"GlobalAveragePool|Upsample|QLinear\w+|DynamicQuantizeLinear|Dequantize\w*|Quantize\w*)"
)


def _plain(operator: str) -> str:
    """Return the operator without the domain of ONNX or ONNX Runtime."""
    domain, _, name = operator.rpartition("::")
    return name if domain in ("", "com.microsoft", "com.microsoft.nchwc") else operator


def formula(
    macs_at: Callable[[Mapping[str, int]], int | None], base: Mapping[str, int]
) -> dict[str, int] | None:
    """Return the count as a polynomial, e.g. ``{"": 5, "batch": 3, "batch*steps^2": 1}``.

    ``macs_at`` counts at given sizes. The polynomial in at most two dimensions is fitted to counts
    at multiples of ``base`` and tested at another one; None if it does not fit.
    """
    names = list(base)
    if len(names) > 2:
        return None
    if not names:
        total = macs_at({})
        return None if total is None else {"": total}
    counted: dict[tuple[int, ...], Fraction] = {}
    for scales in itertools.product((1, 2, 3), repeat=len(names)):
        count = macs_at({n: base[n] * scale for n, scale in zip(names, scales, strict=True)})
        if count is None:
            return None
        counted[scales] = Fraction(count)
    terms = _interpolated(names, counted, base)
    beyond = {name: base[name] * 5 for name in names}
    return terms if terms is not None and evaluate(terms, beyond) == macs_at(beyond) else None


def evaluate(terms: Mapping[str, int], dims: Mapping[str, int]) -> int | None:
    """Return the value of a formula, None if a size is missing."""
    total = 0
    for term, factor in terms.items():
        for part in filter(None, term.split("*")):
            name, _, power = part.partition("^")
            if name not in dims:
                return None
            factor *= dims[name] ** int(power or 1)
        total += factor
    return total


def _interpolated(
    names: Sequence[str], counted: Mapping[tuple[int, ...], Fraction], base: Mapping[str, int]
) -> dict[str, int] | None:
    """Return the quadratic polynomial through counts at multiples of ``base``."""
    found = dict(counted)
    for at in range(len(names)):  # one dimension at a time, from scales to powers
        powers: dict[tuple[int, ...], Fraction] = {}
        for key in [key for key in found if key[at] == 1]:
            one, two, three = (found[_with(key, at, scale)] for scale in (1, 2, 3))
            square = (three - 2 * two + one) / 2
            linear = two - one - 3 * square
            for power, factor in enumerate((one - linear - square, linear, square)):
                powers[_with(key, at, power)] = factor / base[names[at]] ** power
        found = powers
    if any(factor.denominator != 1 for factor in found.values()):
        return None
    terms = {}
    for exponents, factor in sorted(found.items()):
        shown = (
            name if power == 1 else f"{name}^{power}"
            for name, power in zip(names, exponents, strict=True)
            if power
        )
        if factor:
            terms["*".join(shown)] = int(factor)
    return terms


def _with(key: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*key[:at], value, *key[at + 1 :])
