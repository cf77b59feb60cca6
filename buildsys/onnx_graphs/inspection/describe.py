"""Descriptions of graphs for ``buildsys inspect`` and the report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

from onnx import ModelProto

from buildsys.onnx_graphs.inlined_functions import inline_all
from buildsys.onnx_graphs.inspection.load import (
    drop_weights,
    input_dims,
    plain_model,
    with_shapes,
    with_sizes,
)
from buildsys.onnx_graphs.inspection.macs import COUNTED, Macs, count_macs, formula, macs_per_node
from buildsys.onnx_graphs.inspection.plain_graph import Body, PlainModel

_FALLBACK = 2  # size of dimensions without one; 1 would broadcast
_LARGEST = 5
# indices, shapes and flags
_NOT_WEIGHTS = ("int64", "int32", "int16", "bool", "string", "undefined")


def describe(proto: ModelProto, dims: Mapping[str, int]) -> dict[str, Any]:
    """Describe a model without its large weights.

    ``dims`` are sizes of dynamic dimensions; MACs and a second set of shapes are evaluated at them.
    """
    model = plain_model(with_shapes(proto))
    sized = plain_model(with_sizes(proto, dims))
    histogram = model.operators
    initializers, parameters = _stored(model)
    custom_domains: dict[str, dict[str, int]] = {}  # domain -> operator -> nodes
    for operator, count in histogram.items():
        domain, _, name = operator.rpartition("::")
        if domain and not domain.startswith("ai.onnx"):
            custom_domains.setdefault(domain, {})[name] = count
    return {
        "ir_version": model.ir_version,
        "producer": model.producer,
        "opsets": dict(model.opsets),
        "inputs": [_port(model.body, name) for name in model.body.inputs],
        "outputs": [_port(model.body, name) for name in model.body.outputs],
        "operators": histogram,
        "initializers": initializers,
        "parameters": parameters,
        "macs": _macs(proto, dims),
        "custom_domains": custom_domains,
        "functions": [
            {
                "name": function.name,
                "inputs": list(function.inputs),
                "outputs": list(function.outputs),
                "operators": dict(Counter(node.operator for node in function.nodes)),
                "opsets": dict(function.opsets),
            }
            for function in model.functions
        ],
        "nodes": [
            {
                "name": node.name,
                "label": node.label,
                "operator": node.operator,
                "inputs": list(node.inputs),
                "outputs": list(node.outputs),
                "attributes": dict(node.attributes),
                "macs": macs,
                "inside": inside,
            }
            for (node, inside), macs in zip(
                model.body.walk(), macs_per_node(sized.body), strict=True
            )
        ],
        "tensors": _tensors(model, sized),
    }


def report_facts(proto: ModelProto, dims: Mapping[str, int]) -> dict[str, Any]:
    """Collect the facts of a graph for the report.

    ``dims`` are valid sizes of the dynamic dimensions. The large weights leave ``proto``.
    """
    drop_weights(proto)
    model = plain_model(proto)
    initializers, parameters = _stored(model)
    return {
        "opsets": dict(model.opsets),
        "initializers": initializers,
        "weights": parameters,
        "macs": _mac_formulas(proto, dims),
    }


def _stored(model: PlainModel) -> tuple[dict[str, Any], int]:
    """Add up the sizes of all initializers; count the weights."""
    stored = model.initializers
    dtypes: dict[str, dict[str, int]] = {}
    for tensor in stored:
        size = dtypes.setdefault(tensor.dtype, {"count": 0, "bytes": 0})
        size["count"] += 1
        size["bytes"] += tensor.bytes
    largest = sorted(stored, key=lambda tensor: (-tensor.bytes, tensor.name))[:_LARGEST]
    sizes = {
        "count": len(stored),
        "bytes": sum(tensor.bytes for tensor in stored),
        "dtypes": dict(sorted(dtypes.items(), key=lambda item: (-item[1]["bytes"], item[0]))),
        "largest": [tensor.as_json() for tensor in largest],
    }
    return sizes, sum(
        math.prod(tensor.shape) for tensor in stored if tensor.dtype not in _NOT_WEIGHTS
    )


def _tensors(model: PlainModel, sized: PlainModel) -> dict[str, Any]:
    """Describe all tensors by name.

    Names of bodies get a prefix if they are taken.
    """
    bodies = [("", model.body, sized.body)]
    for (node, inside), (other, _) in zip(model.body.walk(), sized.body.walk(), strict=True):
        for attribute, body in node.bodies.items():
            path = f"{inside}/{node.label}.{attribute}".lstrip("/")
            bodies.append((path, body, other.bodies[attribute]))
    tensors: dict[str, Any] = {}
    for inside, body, at in bodies:
        names = (*body.inputs, *body.initializers, *body.producers, *body.outputs)
        for name in dict.fromkeys(names):
            stored, producer = body.initializers.get(name), body.producers.get(name)
            kind = "input" if name in body.inputs else "output" if name in body.outputs else "value"
            port = _port(body, name)
            tensors[f"{inside}:{name}" if name in tensors else name] = {
                "kind": "initializer" if stored else kind,
                "dtype": port["dtype"],
                "shape": port["shape"],
                "sized": _port(at, name)["shape"],
                "bytes": stored.bytes if stored else None,
                "producer": producer.label if producer else None,
                "consumers": [node.label for node in body.consumers.get(name, ())],
                **({"inside": inside} if inside else {}),
            }
    return tensors


def _port(body: Body, name: str) -> dict[str, Any]:
    value = body.value(name)
    shape = None if value is None or value.shape is None else list(value.shape)
    return {"name": name, "dtype": value.dtype if value else None, "shape": shape}


def _macs(proto: ModelProto, dims: Mapping[str, int]) -> dict[str, Any]:
    counts = _macs_at(proto, dims)
    has_formula = input_dims(proto) and counts.is_complete
    return {
        "total": counts.total,
        "complete": counts.is_complete,
        "dims": dict(dims),
        "formula": _mac_formulas(proto, dims)["formula"] if has_formula else None,
        "operators": {
            name: {"macs": macs, "nodes": counts.counted[name]}
            for name, macs in counts.by_operator.most_common()
        },
        "unknown_shapes": dict(counts.unknown),
        "unknown_operators": dict(counts.opaque),
        "loops_counted_once": counts.loops,
        "counted": list(COUNTED),
    }


def _macs_at(model: ModelProto, dims: Mapping[str, int]) -> Macs:
    """Count a model, with functions inlined if possible."""
    if model.functions:
        with suppress(RuntimeError, ValueError):  # no conversion to the model's opset
            model = inline_all(model)
    return count_macs(plain_model(with_sizes(model, dims)).body)


def _mac_formulas(model: ModelProto, base: Mapping[str, int]) -> dict[str, Any]:
    """Fit formulas in the dynamic dimensions: ``formula`` in total, ``operators`` by operator.

    ``not_counted`` has operators with unknown counts. ``base`` are valid sizes; the formulas are
    fitted to multiples of them, and None if no polynomial fits or something is unknown.
    """
    sizes = {name: base.get(name, _FALLBACK) for name in input_dims(model)}
    at = cache(lambda *values: _macs_at(model, dict(zip(sizes, values, strict=True))))
    first = at(*sizes.values())
    missing = dict(sorted((first.unknown + first.opaque).items()))
    if not first.is_complete:  # a partial total would look complete
        return {"formula": None, "operators": {}, "not_counted": missing}
    return {
        "formula": formula(lambda dims: at(*dims.values()).total, sizes),
        "operators": {
            name: formula(partial(lambda n, dims: at(*dims.values()).by_operator[n], name), sizes)
            for name in sorted(first.by_operator)
        },
        "not_counted": missing,
    }
