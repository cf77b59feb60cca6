"""Multiply-accumulates of a model file at chosen sizes, local functions included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onnx import ModelProto, inliner

from buildsys.onnx_graphs.inspection.load import plain_model
from buildsys.onnx_graphs.inspection.macs import (
    Lookup,
    Macs,
    count_macs,
    formula,
    node_macs,
    nothing,
    within,
)
from buildsys.onnx_graphs.inspection.plain_graph import Body
from buildsys.onnx_graphs.inspection.shapes import input_dims, with_sizes

_FALLBACK = 2  # a size to count with where nobody names one; 1 broadcasts


def macs_at(model: ModelProto, dims: Mapping[str, int]) -> Macs:
    """Count a model whose large weights are gone, its local functions written out where they are called."""
    sized = with_sizes(_inlined(model), dims)
    return count_macs(plain_model(sized).body)


def macs_figures(model: ModelProto, base: Mapping[str, int]) -> dict[str, Any]:
    """Return what a report shows of a model's products.

    ``formula`` is by dynamic dimensions, ``operators`` has the same for each operator, ``not_counted`` the number of
    nodes by operator whose products are not known.

    ``base`` are sizes with which the network works; formulas are made from multiples of them. A formula is None where
    no polynomial fits, or something is not known.
    """
    names = input_dims(model)
    sizes = {name: base.get(name, _FALLBACK) for name in names}
    seen: dict[tuple[int, ...], Macs] = {}

    def at(dims: Mapping[str, int]) -> Macs:
        key = tuple(dims.values())
        if key not in seen:
            seen[key] = macs_at(model, dims)
        return seen[key]

    first = at(sizes)
    missing = dict(sorted((first.unknown + first.opaque).items()))
    if not first.is_complete:  # what is left would look like all of it
        return {"formula": None, "operators": {}, "not_counted": missing}
    operators = {
        operator: formula(_count_of(at, operator), sizes) for operator in sorted(first.by_operator)
    }
    return {
        "formula": formula(lambda dims: at(dims).total, sizes),
        "operators": operators,
        "not_counted": missing,
    }


def _count_of(
    at: Callable[[Mapping[str, int]], Macs], operator: str
) -> Callable[[Mapping[str, int]], int]:
    return lambda dims: at(dims).by_operator[operator]


def each_nodes_macs(body: Body, outer: Lookup = nothing) -> Iterator[int | None]:
    """Yield the count of every node in the order of ``PlainModel.placed``, None where it is not known."""
    lookup = within(body, outer)
    for node in body.nodes:
        yield None if node.bodies else node_macs(node, lookup)
        for inner in node.bodies.values():
            yield from each_nodes_macs(inner, lookup)


def _inlined(model: ModelProto) -> ModelProto:
    """Return a model with its local functions where they are called; where ONNX cannot do that, they stay."""
    if not model.functions:
        return model
    try:
        return inliner.inline_local_functions(model)
    except (RuntimeError, ValueError):  # a function of an opset that does not fit the model's
        return model
