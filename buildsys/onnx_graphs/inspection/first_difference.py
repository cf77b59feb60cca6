"""The first differing field of two ONNX files whose bytes differ, as a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, numpy_helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import DATA_SUFFIX, load_model, tensors_of

_LONGEST = 120


def first_difference(first: Path, second: Path, first_byte: int) -> str:
    """Describe the first difference of two models or external data files, "" if unknown.

    ``first_byte`` is the position of the first byte that differs.
    """
    try:
        if first.name.endswith(DATA_SUFFIX):
            graph = first.with_name(first.name.removesuffix(DATA_SUFFIX))
            return difference_at(load_model(graph, external_data=False), first_byte)
        return difference(*(load_model(path, external_data=False) for path in (first, second)))
    except StageError:
        return ""


def difference_at(model: onnx.ModelProto, position: int) -> str:
    """Name the initializer at a position of the external data."""
    for tensor in tensors_of(model):
        place = {entry.key: entry.value for entry in tensor.external_data}
        offset = int(place.get("offset", 0))
        if place and offset <= position < offset + int(place.get("length", 0)):
            return f"initializer {tensor.name}: external data: byte {position - offset}"
    return ""


def difference(first: Message, second: Message, where: str = "model") -> str:
    """Describe the first differing field of two messages, e.g. ``node a: op_type: Add and Mul``."""
    if isinstance(first, TensorProto) and isinstance(second, TensorProto):
        is_inline = TensorProto.EXTERNAL not in (first.data_location, second.data_location)
        if first.data_type == second.data_type and first.dims == second.dims and is_inline:
            return f"{where}: values: {_differing_values(first, second)}"
    for name in (field.name for field in first.DESCRIPTOR.fields):
        old, new = getattr(first, name), getattr(second, name)
        if old == new:
            continue
        if isinstance(old, Message):
            return difference(old, new, where if name == "graph" else f"{where}: {name}")
        is_repeated = not isinstance(old, str | bytes) and hasattr(old, "__len__")
        if is_repeated and len(old) != len(new):
            return f"{where}: {name}: {len(old)} and {len(new)}"
        if is_repeated and isinstance(old[0], Message):
            pairs = enumerate(zip(old, new, strict=True))
            place, (member, other) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
            inner = f"{name} {_label(member) or place}"
            return difference(member, other, inner if where == "model" else f"{where}: {inner}")
        return f"{where}: {name}: {_short(old)} and {_short(new)}"
    return ""


def _differing_values(first: TensorProto, second: TensorProto) -> str:
    """Describe the first element whose bits differ, even if both are NaN or zero."""
    a, b = (numpy_helper.to_array(tensor).reshape(-1) for tensor in (first, second))
    bits = (np.ascontiguousarray(values).view(np.uint8).reshape(a.size, -1) for values in (a, b))
    unequal = np.not_equal(*bits).any(axis=1)
    index = int(unequal.argmax())
    return f"{a[index]} at element {index} and {b[index]} (of {int(unequal.sum())} of {a.size})"


def _label(member: Any) -> str:
    """Name a member of a repeated field, else by its first output."""
    name = getattr(member, "name", "") or getattr(member, "key", "")
    return str(name or next(iter(getattr(member, "output", ())), ""))


def _short(value: Any) -> str:
    text = f"{len(value)} bytes" if isinstance(value, bytes) else " ".join(str(value).split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
