"""Weights and skeleton of an ONNX file, read without the library onnx.

The skeleton is the graph without the contents of its initializers: networks with equal skeletons
differ in their weights only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array
from buildsys.system.protobuf import Content, byte_fields, numbers, opened

# field numbers in onnx.proto
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW, _TENSOR_EXTERNAL = 2, 8, 9, 13
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_DTYPES = {1: "float32", 10: "float16"}  # the ones that a network computes with, as numpy has them


@dataclass(frozen=True)
class Weight:
    """The contents of an initializer: a part of a file."""

    dtype: str  # "" if it is neither float32 nor float16
    file: Path
    start: int
    stop: int
    digest: str

    def array(self) -> Array:
        """Return the contents as a flat array."""
        with self.file.open("rb") as file:
            file.seek(self.start)
            return np.frombuffer(file.read(self.stop - self.start), self.dtype or np.uint8)


@dataclass(frozen=True)
class WeightFile:
    """The initializers of an ONNX file by name, and the digest of everything else."""

    skeleton: str
    weights: Mapping[str, Weight]


def read_weights(onnx: Path) -> WeightFile:
    """Read the places and digests of all initializers.

    Raises: StageError: the file is not ONNX, or its external data is missing.
    """
    skeleton, weights = hashlib.sha256(), {}
    try:
        with opened(onnx) as content:
            position = 0
            for start, stop in _initializers(content):
                name, weight, inline = _weight(content, start, stop, onnx)
                if inline is not None:
                    skeleton.update(content[position : inline[0]])
                    position = inline[1]
                if weight is not None:
                    weights[name] = weight
            skeleton.update(content[position:])
    except (OSError, ValueError, IndexError) as error:
        text = f"the weights of {onnx.name} cannot be read: {error}"
        raise StageError(text, "build the graph again") from error
    return WeightFile(skeleton.hexdigest(), weights)


def _initializers(content: Content) -> Iterator[tuple[int, int]]:
    for field in byte_fields(content, 0, len(content)):
        if field.number == _MODEL_GRAPH:
            for inner in byte_fields(content, field.start, field.stop):
                if inner.number == _GRAPH_INITIALIZER:
                    yield inner.start, inner.stop


def _weight(
    content: Content, start: int, stop: int, onnx: Path
) -> tuple[str, Weight | None, tuple[int, int] | None]:
    """Return the name, the contents and the place in the file, None unless they are inside.

    Contents in a typed field (``float_data``) are no weight: they belong to the skeleton.
    """
    name, inline, external = "", None, {}
    for field in byte_fields(content, start, stop):
        if field.number == _TENSOR_NAME:
            name = content[field.start : field.stop].decode()
        elif field.number == _TENSOR_RAW:
            inline = field.start, field.stop
        elif field.number == _TENSOR_EXTERNAL:
            entry = {
                each.number: content[each.start : each.stop].decode()
                for each in byte_fields(content, field.start, field.stop)
            }
            external[entry.get(_ENTRY_KEY, "")] = entry.get(_ENTRY_VALUE, "")
    dtype = _DTYPES.get(dict(numbers(content, start, stop)).get(_TENSOR_TYPE, 0), "")
    if inline is not None:
        digest = hashlib.sha256(memoryview(content)[inline[0] : inline[1]]).hexdigest()
        return name, Weight(dtype, onnx, *inline, digest[:32]), inline
    if "location" not in external:
        return name, None, None
    file, begin = onnx.parent / external["location"], int(external.get("offset", 0))
    with opened(file) as data:
        end = begin + int(external.get("length", len(data) - begin))
        if end > len(data):
            raise ValueError(f"{file.name} is truncated")
        digest = hashlib.sha256(memoryview(data)[begin:end]).hexdigest()
    return name, Weight(dtype, file, begin, end, digest[:32]), None
