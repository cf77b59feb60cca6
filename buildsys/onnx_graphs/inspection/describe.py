"""Descriptions of graphs for ``buildsys inspect`` and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from onnx import ModelProto

from buildsys.onnx_graphs.graph_reader import inline_all
from buildsys.onnx_graphs.inspection.graph import (
    Body,
    PlainModel,
    StoredTensor,
    drop_weights,
    plain_model,
    with_shapes,
    with_sizes,
)
from buildsys.onnx_graphs.inspection.macs import (
    COUNTED,
    Macs,
    count_macs,
    linear_macs,
    macs_per_node,
)
from buildsys.onnx_graphs.onnx_file import ports

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
    operators = model.operators
    custom_domains: dict[str, dict[str, int]] = {}  # domain -> operator -> nodes
    for operator, count in operators.items():
        domain, _, name = operator.rpartition("::")
        if domain and not domain.startswith("ai.onnx"):
            custom_domains.setdefault(domain, {})[name] = count
    counts = _count(proto, dims)
    return {
        "ir_version": model.ir_version,
        "producer": model.producer,
        "opsets": dict(model.opsets),
        "inputs": [_port(model.body, name) for name in model.body.inputs],
        "outputs": [_port(model.body, name) for name in model.body.outputs],
        "operators": operators,
        "initializers": _stored(model.initializers),
        "parameters": _weights(model.initializers),
        "macs": {
            "total": counts.total,
            "complete": counts.is_complete,
            "dims": dict(dims),
            "formula": _formula(proto, dims),
            "operators": {
                name: {"macs": macs, "nodes": counts.counted[name]}
                for name, macs in counts.by_operator.most_common()
            },
            "unknown_shapes": dict(counts.unknown),
            "unknown_operators": dict(counts.opaque),
            "loops_counted_once": counts.loops,
            "counted": list(COUNTED),
        },
        "custom_domains": custom_domains,
        "functions": [
            {
                "name": name,
                "inputs": list(body.inputs),
                "outputs": list(body.outputs),
                "operators": dict(body.operators),
            }
            for name, body in model.functions.items()
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

    ``dims`` are the sizes of the dynamic dimensions. The large weights leave ``proto``.
    """
    drop_weights(proto)
    model, counts = plain_model(proto), _count(proto, dims)
    return {
        "opsets": dict(model.opsets),
        "initializers": _stored(model.initializers),
        "weights": _weights(model.initializers),
        "macs": {
            "total": counts.total if counts.is_complete else None,  # a part would look complete
            "formula": _formula(proto, dims),
            "operators": dict(counts.by_operator) if counts.is_complete else {},
            "not_counted": dict(sorted((counts.unknown + counts.opaque).items())),
        },
    }


def _stored(tensors: list[StoredTensor]) -> dict[str, Any]:
    """Add up the sizes of all initializers."""
    dtypes: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        size = dtypes.setdefault(tensor.dtype, {"count": 0, "bytes": 0})
        size["count"] += 1
        size["bytes"] += tensor.bytes
    largest = sorted(tensors, key=lambda tensor: (-tensor.bytes, tensor.name))[:_LARGEST]
    return {
        "count": len(tensors),
        "bytes": sum(tensor.bytes for tensor in tensors),
        "dtypes": dict(sorted(dtypes.items(), key=lambda item: (-item[1]["bytes"], item[0]))),
        "largest": [tensor.as_json() for tensor in largest],
    }


def _weights(tensors: list[StoredTensor]) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors if tensor.dtype not in _NOT_WEIGHTS)


def _tensors(model: PlainModel, sized: PlainModel) -> dict[str, Any]:
    """Describe all tensors by name; names of bodies get a prefix if they are taken."""
    bodies = [("", model.body, sized.body)]
    for (node, inside), (other, _) in zip(model.body.walk(), sized.body.walk(), strict=True):
        for attribute, body in node.bodies.items():
            path = f"{inside}/{node.label}.{attribute}".lstrip("/")
            bodies.append((path, body, other.bodies[attribute]))
    tensors: dict[str, Any] = {}
    for inside, body, sized_body in bodies:
        names = (*body.inputs, *body.initializers, *body.producers, *body.outputs)
        for name in dict.fromkeys(names):
            stored, producer = body.initializers.get(name), body.producers.get(name)
            kind = "input" if name in body.inputs else "output" if name in body.outputs else "value"
            port = _port(body, name)
            tensors[f"{inside}:{name}" if name in tensors else name] = {
                "kind": "initializer" if stored else kind,
                "dtype": port["dtype"],
                "shape": port["shape"],
                "sized": _port(sized_body, name)["shape"],
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


def _count(model: ModelProto, dims: Mapping[str, int]) -> Macs:
    """Count a model, with functions inlined if possible."""
    if model.functions:
        with suppress(RuntimeError, ValueError):  # no conversion to the model's opset
            model = inline_all(model)
    return count_macs(plain_model(with_sizes(model, dims)).body)


def _formula(model: ModelProto, dims: Mapping[str, int]) -> dict[str, int] | None:
    """Fit the total as ``{dimension: factor, "": rest}``; None unless one dimension is dynamic."""
    sizes = (size for port in ports(model)[0] for size in port["shape"] or ())
    dynamic = {size for size in sizes if isinstance(size, str)}
    if len(dynamic) != 1:
        return None
    (name,) = dynamic

    def count(size: int) -> int | None:
        counts = _count(model, {name: size})
        return counts.total if counts.is_complete else None

    fixed, factor = linear_macs(count, dims.get(name, _FALLBACK)) or (0, 0)
    return {name: factor, **({"": fixed} if fixed else {})} if fixed or factor else None
