"""The figures of a graph that reports show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnx import ModelProto

from buildsys.onnx_graphs.inspection.load import drop_weights, plain_model
from buildsys.onnx_graphs.inspection.mac_totals import macs_figures
from buildsys.onnx_graphs.inspection.plain_graph import PlainModel, StoredTensor

_LARGEST = 5
_NOT_WEIGHTS = (
    "int64",
    "int32",
    "int16",
    "bool",
    "string",
    "undefined",
)  # indices, shapes and flags


def graph_figures(model: ModelProto, base: Mapping[str, int]) -> dict[str, Any]:
    """Return what a report shows of a graph: opsets, initializers, weights, multiply-accumulates.

    The large weights leave ``model``. ``base`` are sizes of dynamic dimensions with which the network works.
    """
    drop_weights(model)
    network = plain_model(model)
    return {
        "opsets": dict(network.opsets),
        "initializers": initializer_figures(network),
        "weights": parameters(network.stored),
        "macs": macs_figures(model, base),
    }


def initializer_figures(network: PlainModel) -> dict[str, Any]:
    """Return count, bytes, the same by dtype, and the largest."""
    stored = list(network.stored)
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
        "largest": [
            {"name": one.name, "dtype": one.dtype, "shape": list(one.shape), "bytes": one.bytes}
            for one in largest
        ],
    }


def parameters(stored: Iterable[StoredTensor]) -> int:
    """Return the elements of the initializers that are weights: of a float type, or quantized to 8 bits or fewer."""
    return sum(one.elements for one in stored if one.dtype not in _NOT_WEIGHTS)
