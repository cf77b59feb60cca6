"""All that ``doit inspect`` tells of a graph, as JSON values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from onnx import ModelProto

from buildsys.onnx_graphs.inspection.figures import initializer_figures, parameters
from buildsys.onnx_graphs.inspection.load import plain_model
from buildsys.onnx_graphs.inspection.mac_totals import each_nodes_macs, macs_at, macs_figures
from buildsys.onnx_graphs.inspection.macs import COUNTED, Macs
from buildsys.onnx_graphs.inspection.plain_graph import (
    Body,
    Placed,
    PlainModel,
    Value,
    operator_histogram,
)
from buildsys.onnx_graphs.inspection.shapes import input_dims, with_shapes, with_sizes


def describe(model: ModelProto, dims: Mapping[str, int]) -> dict[str, Any]:
    """Return the whole description of a model whose large weights are gone.

    ``dims`` are sizes of dynamic dimensions, at which products are counted and shapes are told beside the named ones.
    """
    network = plain_model(with_shapes(model))
    sized = plain_model(with_sizes(model, dims))
    return {
        "ir_version": network.ir_version,
        "producer": network.producer,
        "opsets": dict(network.opsets),
        "inputs": [_port(network.body, name) for name in network.body.inputs],
        "outputs": [_port(network.body, name) for name in network.body.outputs],
        "operators": operator_histogram(network),
        "initializers": initializer_figures(network),
        "parameters": parameters(network.stored),
        "macs": _macs(model, dims),
        "custom_domains": custom_domains(network),
        "functions": [
            {"name": function.name, "inputs": list(function.inputs), "outputs": list(function.outputs),
             "operators": dict(Counter(node.operator for node in function.nodes)), "opsets": dict(function.opsets)}
            for function in network.functions
        ],
        "nodes": [
            node_json(place, macs)
            for place, macs in zip(network.placed, each_nodes_macs(sized.body), strict=True)
        ],
        "tensors": _tensors(network, sized),
    }  # fmt: skip


def custom_domains(network: PlainModel) -> dict[str, dict[str, int]]:
    """Return domain -> operator -> count of nodes outside ONNX's own domains."""
    found: dict[str, dict[str, int]] = {}
    for operator, count in operator_histogram(network).items():
        domain, _, name = operator.rpartition("::")
        if domain and not domain.startswith("ai.onnx"):
            found.setdefault(domain, {})[name] = count
    return found


def node_json(place: Placed, macs: int | None) -> dict[str, Any]:
    """Return a node as JSON; ``inside`` is the body that it is in, ``label`` what it is told by."""
    node = place.node
    return {
        "name": node.name,
        "label": node.label,
        "operator": node.operator,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
        "attributes": dict(node.attributes),
        "macs": macs,
        "inside": place.inside,
    }


def tensor_json(body: Body, sized: Body, name: str) -> dict[str, Any]:
    """Return where a tensor comes from, where it goes, its shape in names and at the counted sizes."""
    value, at = body.value(name), sized.value(name)
    stored, producer = body.initializers.get(name), body.producers.get(name)
    return {
        "kind": "initializer" if stored else "input" if name in body.inputs else
                "output" if name in body.outputs else "value",
        "dtype": value.dtype if value else None,
        "shape": _shape(value),
        "sized": _shape(at),
        "bytes": stored.bytes if stored else None,
        "producer": producer.label if producer else None,
        "consumers": [node.label for node in body.consumers.get(name, ())],
    }  # fmt: skip


def _tensors(network: PlainModel, sized: PlainModel) -> dict[str, Any]:
    """Return all tensors by name; those of a body behind its place where somebody else has the name already."""
    found = {
        name: tensor_json(network.body, sized.body, name) for name in all_tensors(network.body)
    }
    for place, at in zip(network.placed, sized.placed, strict=True):
        for attribute, body in place.node.bodies.items():
            inside = f"{place.inside}/{place.node.label}.{attribute}".lstrip("/")
            for name in all_tensors(body):
                told = {**tensor_json(body, at.node.bodies[attribute], name), "inside": inside}
                found[f"{inside}:{name}" if name in found else name] = told
    return found


def all_tensors(body: Body) -> list[str]:
    """Return the tensors of a graph, without those of bodies: inputs, initializers, then what nodes make."""
    made = (name for node in body.nodes for name in node.outputs if name)
    return list(dict.fromkeys((*body.inputs, *body.initializers, *made, *body.outputs)))


def _port(body: Body, name: str) -> dict[str, Any]:
    value = body.value(name)
    return {"name": name, "dtype": value.dtype if value else None, "shape": _shape(value)}


def _shape(value: Value | None) -> list[int | str | None] | None:
    return None if value is None or value.shape is None else list(value.shape)


def _macs(model: ModelProto, dims: Mapping[str, int]) -> dict[str, Any]:
    found: Macs = macs_at(model, dims)
    figures = macs_figures(model, dims) if input_dims(model) and found.is_complete else None
    return {
        "total": found.total,
        "complete": found.is_complete,
        "dims": dict(dims),
        "formula": figures["formula"] if figures else None,
        "operators": {
            name: {"macs": macs, "nodes": found.counted[name]}
            for name, macs in found.by_operator.most_common()
        },
        "unknown_shapes": dict(found.unknown),
        "unknown_operators": dict(found.opaque),
        "loops_counted_once": found.loops,
        "counted": list(COUNTED),
    }
