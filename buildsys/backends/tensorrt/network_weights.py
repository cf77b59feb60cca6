"""Weights of a network's layers, and a digest of the rest.

A network defined by hand has no file to compare. Two networks of one skeleton differ in the values
of their weights only, so an engine of one can be refitted with the weights of the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import log_of
from buildsys.backends.tensorrt.network_edits import io_tensors
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array

# attributes of a layer that are weights, with the role that a refitter gives them
_ROLES = {"kernel": "KERNEL", "bias": "BIAS", "shift": "SHIFT", "scale": "SCALE",
          "weights": "CONSTANT"}  # fmt: skip
WEIGHTS = (*_ROLES, "power")  # no refitter takes the last one
# layers whose weights or inner networks cannot be read
_OPAQUE = ("PLUGIN", "PLUGIN_V2", "PLUGIN_V3")
_PLAIN = (bool, int, float, str, tuple, list, type(None))
LayerWeights = Mapping[tuple[str, str], Array]  # by layer and role, in memory of the network


def layer_classes(library: Library) -> dict[str, type]:
    """Return the classes of layers by kind, without underscores."""
    trt = library.trt
    return {name[1:-5].upper(): getattr(trt, name) for name in dir(trt) if name.endswith("Layer")}


def read_network(library: Library, network: Any) -> tuple[str, LayerWeights]:
    """Read the digest of a network without its weights, and the weights.

    Raises: ValueError: two layers have one name, or a layer has weights that cannot be read.
    """
    arrays: dict[tuple[str, str], Array] = {}
    described: dict[str, Any] = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        kind = layer.type.name
        if layer.name in described:
            raise ValueError(f"two layers of the network are named {layer.name}")
        if kind in _OPAQUE:
            raise ValueError(f"the layer {layer.name} is a plugin, which may contain weights")
        facts: dict[str, Any] = {"kind": kind}
        facts["inputs"] = [_tensor(layer.get_input(i)) for i in range(layer.num_inputs)]
        facts["outputs"] = [_tensor(layer.get_output(i)) for i in range(layer.num_outputs)]
        for attribute, value in _attributes(library, layer, kind):
            if attribute in _ROLES and isinstance(value, np.ndarray):
                if value.size:
                    arrays[layer.name, _ROLES[attribute]] = value
                facts[attribute] = [str(value.dtype), value.size]
            elif isinstance(value, np.ndarray):
                facts[attribute] = value.tolist()
            elif attribute in _ROLES and not isinstance(value, _PLAIN):
                text = f"the {attribute} of the layer {layer.name} is not a numpy array"
                raise ValueError(text)
            else:
                facts[attribute] = value if isinstance(value, _PLAIN) else repr(value)
        described[layer.name] = facts
    ports = [[_tensor(tensor) for tensor in tensors] for tensors in io_tensors(network)]
    text = json.dumps([ports, list(described.items())], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest(), arrays


def weights_digests(weights: LayerWeights) -> dict[str, str]:
    """Return the digest of each array, by layer and role."""
    return {
        " ".join(key): hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        for key, array in weights.items()
    }


def set_layer_weights(library: Library, refitter: Any, weights: LayerWeights) -> None:
    """Give a refitter the weights of its layers.

    Raises: StageError: it refuses some.
    """
    for layer_name, role in zip(*refitter.get_all(), strict=True):
        array = weights.get((layer_name, role.name))
        if array is None:
            continue
        if not refitter.set_weights(layer_name, role, library.trt.Weights(array)):
            reason = log_of(library).messages.error_text("without a reason")
            raise StageError(f"TensorRT refuses the weights {layer_name} {role.name}: {reason}")


def layer_weights_of(refitter: Any, *, missing: bool = False) -> set[str]:
    """Return the layers and roles that a refitter can replace, or that it still needs."""
    keys = refitter.get_missing() if missing else refitter.get_all()
    return {f"{layer_name} {role.name}" for layer_name, role in zip(*keys, strict=True)}


def _tensor(tensor: Any) -> list[str] | None:
    """Return name, type and shape; None for an unused optional input."""
    return None if tensor is None else [tensor.name, str(tensor.dtype), str(tensor.shape)]


def _attributes(library: Library, layer: Any, kind: str) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a layer's own class, which the network gives as an ``ILayer``.

    Raises: ValueError: TensorRT has no such class.
    """
    own = layer_classes(library).get(kind.replace("_", ""))
    if own is None:
        raise ValueError(f"layers of the kind {kind} cannot be compared")
    base, layer.__class__ = layer.__class__, own
    for attribute in sorted(dir(type(layer))):
        if attribute.startswith("_") or attribute in ("metadata", "name", "num_ranks"):
            continue
        try:
            value = getattr(layer, attribute)
        except (RuntimeError, ValueError, TypeError) as error:  # of an unused mode of the layer
            value = type(error).__name__
        if not callable(value):
            yield attribute, value
    layer.__class__ = base
