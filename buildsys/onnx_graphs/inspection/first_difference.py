"""The first differing field of two ONNX files, as a sentence.

``inspection.diff`` compares what graphs compute; this comparison explains files whose bytes differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, numpy_helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import DATA_SUFFIX, load_model, tensors_of

_LONGEST = 120
_NAMED = ("node", "initializer", "metadata_props", "value_info", "input", "output", "functions")


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
            item_bytes = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
            element = (position - offset) // int(item_bytes)
            return f"initializer {tensor.name}: external data: element {element}"
    return ""


def difference(first: Message, second: Message, where: str = "model") -> str:
    """Describe the first differing field of two messages, e.g. ``node a: op_type: Add and Mul``."""
    are_tensors = isinstance(first, TensorProto) and isinstance(second, TensorProto)
    if are_tensors and (values := _values(first, second)):
        return f"{where}: values: {values}"
    here = {field.name: value for field, value in first.ListFields()}
    there = {field.name: value for field, value in second.ListFields()}
    for name in dict.fromkeys((*here, *there)):
        old, new = here.get(name), there.get(name)
        if old == new:
            continue
        if isinstance(old, Message) and isinstance(new, Message):
            return difference(old, new, where if name == "graph" else f"{where}: {name}")
        repeated = old if old is not None else new
        is_text = isinstance(repeated, str | bytes)
        if not is_text and isinstance(repeated, Sequence) and isinstance(repeated[0], Message):
            return _of_members(name, list(old or ()), list(new or ()), where)
        return f"{where}: {name}: {_shown(old)} and {_shown(new)}"
    return ""


def _values(first: TensorProto, second: TensorProto) -> str:
    """Describe the first different element of two stored tensors, "" if they are alike."""
    same_shape = first.data_type == second.data_type and first.dims == second.dims
    inside = TensorProto.EXTERNAL not in (first.data_location, second.data_location)
    if not same_shape or not inside or first.raw_data == second.raw_data:
        return ""
    a, b = (numpy_helper.to_array(tensor).reshape(-1) for tensor in (first, second))
    # bit by bit: the files differ there, even if both values are NaN or zero
    bits = (np.ascontiguousarray(values).view(np.uint8).reshape(a.size, -1) for values in (a, b))
    unequal = np.not_equal(*bits).any(axis=1)
    index = int(unequal.argmax())
    count = f" (of {int(unequal.sum())} of {a.size})" if a.size > 1 else ""
    return f"{a[index]} at element {index} and {b[index]}{count}"


def _of_members(name: str, first: Sequence[Any], second: Sequence[Any], where: str) -> str:
    """Describe the first difference between the members of a repeated field."""
    labels, others = ([_label(member, at) for at, member in enumerate(s)] for s in (first, second))
    if labels == others:
        pairs = zip(labels, first, second, strict=True)
        label, old, new = next((label, a, b) for label, a, b in pairs if a != b)
        place = f"{name} {label}" if name in _NAMED else f"{where}: {name} {label}"
        return difference(old, new, place)
    if sorted(labels) == sorted(others):
        at = next(i for i, pair in enumerate(zip(labels, others, strict=True)) if len({*pair}) > 1)
        return f"{where}: order of {name}: {labels[at]} and {others[at]} at {at}"
    removed = [label for label in labels if label not in others]
    added = [label for label in others if label not in labels]
    texts = [
        f"{len(side)}, with {only[0]}" if only else str(len(side))
        for side, only in ((labels, removed), (others, added))
    ]
    return f"{where}: {name}: {texts[0]} and {texts[1]}"


def _label(member: Message, index: int) -> str:
    """Name a member, else by its first output or position."""
    fields = {field.name: value for field, value in member.ListFields()}
    name = next((str(fields[key]) for key in ("name", "key", "domain") if key in fields), "")
    return name or str(next(iter(fields.get("output", ())), "")) or f"[{index}]"


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    text = f"{len(value)} bytes" if isinstance(value, bytes) else " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
