"""Weights of a network's layers, and a digest of the rest.

A network defined by hand has no file to compare. Two networks of one skeleton differ in the values
of their weights only, so an engine of one can be refitted with the weights of the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import log_of
from buildsys.backends.tensorrt.network_edits import io_tensors
from buildsys.backends.tensorrt.parse import Parsed
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array

# attributes of a layer that are weights, with the role that a refitter gives them
_ROLES = {"kernel": "KERNEL", "bias": "BIAS", "shift": "SHIFT", "scale": "SCALE",
          "weights": "CONSTANT"}  # fmt: skip
WEIGHTS = (*_ROLES, "power")  # no refitter takes the last one
# layers whose weights or inner networks cannot be read
_OPAQUE = ("PLUGIN", "PLUGIN_V2", "PLUGIN_V3")
_PLAIN = (bool, int, float, str, tuple, list, type(None))


@dataclass(frozen=True)
class NetworkWeights:
    """A network's weights by layer and role, and a digest of the rest."""

    skeleton: str
    arrays: Mapping[tuple[str, str], Array]  # (layer, role), in memory of the network
    defined: Parsed

    def replaceable(self, refitter: Any) -> set[str]:
        """Return the layers and roles open to the refitter."""
        return {" ".join(key) for key in _keys(refitter.get_all())}

    def missing(self, refitter: Any) -> list[str]:
        """Return the layers and roles still missing."""
        return sorted(" ".join(key) for key in _keys(refitter.get_missing()))

    def give(self, library: Library, refitter: Any, changed: set[str]) -> object:  # noqa: ARG002
        """Give a refitter its weights; return the arrays.

        Raises: StageError: it refuses some.
        """
        log = log_of(library)
        for layer_name, role in _keys(refitter.get_all()):
            array = self.arrays.get((layer_name, role))
            if array is None:
                continue
            value = getattr(library.trt.WeightsRole, role)
            if not refitter.set_weights(layer_name, value, library.trt.Weights(array)):
                reason = log.messages.error_text("without a reason")
                raise StageError(f"TensorRT refuses the weights {layer_name} {role}: {reason}")
        return self.arrays

    @property
    def digests(self) -> dict[str, str]:
        """Return the digest of each array, by layer and role."""
        return {
            " ".join(key): hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
            for key, array in self.arrays.items()
        }


def _keys(found: tuple[Sequence[str], Sequence[Any]]) -> list[tuple[str, str]]:
    """Return layers and roles from a refitter's two lists."""
    return [(layer_name, role.name) for layer_name, role in zip(*found, strict=True)]


def layer_classes(library: Library) -> dict[str, type]:
    """Return the classes of layers by kind, without underscores."""
    trt = library.trt
    return {name[1:-5].upper(): getattr(trt, name) for name in dir(trt) if name.endswith("Layer")}


def network_weights(library: Library, defined: Parsed) -> NetworkWeights:
    """Read the weights of a network.

    Raises: ValueError: two layers have one name, or a layer has weights that cannot be read.
    """
    network = defined.network
    arrays: dict[tuple[str, str], Array] = {}
    described: list[Any] = []
    names = set()
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.name in names:
            raise ValueError(f"two layers of the network are named {layer.name}")
        names.add(layer.name)
        kind = layer.type.name
        if kind in _OPAQUE:
            raise ValueError(f"the layer {layer.name} is a plugin, which may contain weights")
        facts: dict[str, Any] = {"kind": kind, "name": layer.name}
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
                raise ValueError(f"the {attribute} of the layer {layer.name} is no numpy array")
            else:
                facts[attribute] = value if isinstance(value, _PLAIN) else repr(value)
        described.append(facts)
    ports = [[_tensor(tensor) for tensor in tensors] for tensors in io_tensors(network)]
    text = json.dumps([ports, described], sort_keys=True, default=repr)
    return NetworkWeights(hashlib.sha256(text.encode()).hexdigest(), arrays, defined)


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
