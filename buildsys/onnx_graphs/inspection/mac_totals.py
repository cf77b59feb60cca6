"""Multiply-accumulates of whole models, at given sizes and as formulas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
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

_FALLBACK = 2  # size of dimensions without one; 1 would broadcast


def macs_at(model: ModelProto, dims: Mapping[str, int]) -> Macs:
    """Return the counts of a model, with functions inlined if possible."""
    if model.functions:
        with suppress(RuntimeError, ValueError):  # the opsets of function and model differ
            model = inliner.inline_local_functions(model)
    return count_macs(plain_model(with_sizes(model, dims)).body)


def macs_summary(model: ModelProto, base: Mapping[str, int]) -> dict[str, Any]:
    """Return formulas in the dynamic dimensions: ``formula`` in total, ``operators`` by operator.

    ``not_counted`` has operators with unknown counts. ``base`` are valid sizes; the formulas are
    fitted to multiples of them, and None if no polynomial fits or something is unknown.
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
    if not first.is_complete:  # a partial total would look complete
        return {"formula": None, "operators": {}, "not_counted": missing}
    operators = {}
    for name in sorted(first.by_operator):
        count = partial(lambda name, dims: at(dims).by_operator[name], name)
        operators[name] = formula(count, sizes)
    return {
        "formula": formula(lambda dims: at(dims).total, sizes),
        "operators": operators,
        "not_counted": missing,
    }


def macs_per_node(body: Body, outer: Lookup = nothing) -> Iterator[int | None]:
    """Yield the count of every node, in the order of ``PlainModel.placed``."""
    lookup = within(body, outer)
    for node in body.nodes:
        yield None if node.bodies else node_macs(node, lookup)
        for inner in node.bodies.values():
            yield from macs_per_node(inner, lookup)
