"""Descriptions of graphs for ``doit inspect`` and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from onnx import ModelProto

from buildsys.onnx_graphs.inspection.load import drop_weights, plain_model
from buildsys.onnx_graphs.inspection.mac_totals import macs_at, macs_per_node, macs_summary
from buildsys.onnx_graphs.inspection.macs import COUNTED
from buildsys.onnx_graphs.inspection.plain_graph import (
    Body,
    PlainModel,
    StoredTensor,
    Value,
    operator_histogram,
)
from buildsys.onnx_graphs.inspection.shapes import input_dims, with_shapes, with_sizes

_LARGEST = 5
# indices, shapes and flags
_NOT_WEIGHTS = ("int64", "int32", "int16", "bool", "string", "undefined")


def describe(proto: ModelProto, dims: Mapping[str, int]) -> dict[str, Any]:
    """Return the description of a model without its large weights.

    ``dims`` are sizes of dynamic dimensions; MACs and a second set of shapes are evaluated at them.
    """
    model = plain_model(with_shapes(proto))
    sized = plain_model(with_sizes(proto, dims))
    histogram = operator_histogram(model)
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
        "initializers": initializer_summary(model),
        "parameters": parameter_count(model.stored),
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
                "name": place.node.name,
                "label": place.node.label,
                "operator": place.node.operator,
                "inputs": list(place.node.inputs),
                "outputs": list(place.node.outputs),
                "attributes": dict(place.node.attributes),
                "macs": macs,
                "inside": place.inside,
            }
            for place, macs in zip(model.placed, macs_per_node(sized.body), strict=True)
        ],
        "tensors": _tensors(model, sized),
    }


def report_facts(proto: ModelProto, dims: Mapping[str, int]) -> dict[str, Any]:
    """Return the facts of a graph for the report.

    ``dims`` are valid sizes of the dynamic dimensions. The large weights leave ``proto``.
    """
    drop_weights(proto)
    model = plain_model(proto)
    return {
        "opsets": dict(model.opsets),
        "initializers": initializer_summary(model),
        "weights": parameter_count(model.stored),
        "macs": macs_summary(proto, dims),
    }


def initializer_summary(model: PlainModel) -> dict[str, Any]:
    """Return the sizes of the initializers, and the largest ones."""
    stored = list(model.stored)
    dtypes: dict[str, dict[str, int]] = {}
    for one in stored:
        found = dtypes.setdefault(one.dtype, {"count": 0, "bytes": 0})
        found["count"] += 1
        found["bytes"] += one.bytes
    largest = sorted(stored, key=lambda one: (-one.bytes, one.name))[:_LARGEST]
    return {
        "count": len(stored),
        "bytes": sum(one.bytes for one in stored),
        "dtypes": dict(sorted(dtypes.items(), key=lambda item: (-item[1]["bytes"], item[0]))),
        "largest": [one.as_json() for one in largest],
    }


def parameter_count(stored: Iterable[StoredTensor]) -> int:
    """Return the number of elements in floating-point and quantized initializers."""
    return sum(one.elements for one in stored if one.dtype not in _NOT_WEIGHTS)


def _tensors(model: PlainModel, sized: PlainModel) -> dict[str, Any]:
    """Return all tensors by name. Names of bodies get a prefix if they are taken."""
    found = {name: _tensor(model.body, sized.body, name) for name in _tensor_names(model.body)}
    for place, at in zip(model.placed, sized.placed, strict=True):
        for attribute, body in place.node.bodies.items():
            inside = f"{place.inside}/{place.node.label}.{attribute}".lstrip("/")
            for name in _tensor_names(body):
                tensor = _tensor(body, at.node.bodies[attribute], name)
                found[f"{inside}:{name}" if name in found else name] = {**tensor, "inside": inside}
    return found


def _tensor(body: Body, sized: Body, name: str) -> dict[str, Any]:
    value, stored = body.value(name), body.initializers.get(name)
    kind = "input" if name in body.inputs else "output" if name in body.outputs else "value"
    producer = body.producers.get(name)
    return {
        "kind": "initializer" if stored else kind,
        "dtype": value.dtype if value else None,
        "shape": _shape(value),
        "sized": _shape(sized.value(name)),
        "bytes": stored.bytes if stored else None,
        "producer": producer.label if producer else None,
        "consumers": [node.label for node in body.consumers.get(name, ())],
    }


def _tensor_names(body: Body) -> list[str]:
    return list(dict.fromkeys((*body.inputs, *body.initializers, *body.producers, *body.outputs)))


def _port(body: Body, name: str) -> dict[str, Any]:
    value = body.value(name)
    return {"name": name, "dtype": value.dtype if value else None, "shape": _shape(value)}


def _shape(value: Value | None) -> list[int | str | None] | None:
    return None if value is None or value.shape is None else list(value.shape)


def _macs(proto: ModelProto, dims: Mapping[str, int]) -> dict[str, Any]:
    found = macs_at(proto, dims)
    has_formula = input_dims(proto) and found.is_complete
    return {
        "total": found.total,
        "complete": found.is_complete,
        "dims": dict(dims),
        "formula": macs_summary(proto, dims)["formula"] if has_formula else None,
        "operators": {
            name: {"macs": macs, "nodes": found.counted[name]}
            for name, macs in found.by_operator.most_common()
        },
        "unknown_shapes": dict(found.unknown),
        "unknown_operators": dict(found.opaque),
        "loops_counted_once": found.loops,
        "counted": list(COUNTED),
    }
