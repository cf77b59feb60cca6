"""The first differing field of two ONNX files.

``inspection.diff`` compares what graphs compute; this comparison explains files whose bytes differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, numpy_helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import DATA_SUFFIX, load_model, tensors_of

_LONGEST = 120
_KINDS = {  # repeated fields whose members have names
    "node": "node", "initializer": "initializer", "metadata_props": "metadata",
    "value_info": "value", "input": "input", "output": "output", "functions": "function",
}  # fmt: skip
_NAMES = ("name", "key", "domain")


@dataclass(frozen=True)
class FieldDifference:
    """A field with different values in two models."""

    kind: str = "model"
    name: str = ""  # of that node, initializer …
    field: str = ""
    first: str = ""
    second: str = ""

    def sentence(self) -> str:
        """Return e.g. ``initializer fc.bias: raw_data: 0.5 and 0.25 at element 3``."""
        where = ": ".join(part for part in (f"{self.kind} {self.name}".strip(), self.field) if part)
        return f"{where}: {self.first} and {self.second}"

    def at(self, field: str, *values: Any) -> FieldDifference:
        """Return the difference of a field inside this one."""
        outer = self.field if self.field != "graph" else ""
        texts = {"first": _shown(values[0]), "second": _shown(values[1])} if values else {}
        return replace(self, field=f"{outer}.{field}" if outer else field, **texts)


def first_difference(first: Path, second: Path, first_byte: int) -> dict[str, Any] | None:
    """Return the first difference of two models or external data files.

    ``first_byte`` is the position of the first byte that differs. None if nothing can be said.
    """
    try:
        if first.name.endswith(DATA_SUFFIX):
            graph = first.with_name(first.name.removesuffix(DATA_SUFFIX))
            found = difference_at(load_model(graph, external_data=False), first_byte)
        else:
            models = (load_model(path, external_data=False) for path in (first, second))
            found = next(differences(*models), None)
    except StageError:
        return None
    return None if found is None else {**asdict(found), "sentence": found.sentence()}


def difference_at(model: onnx.ModelProto, position: int) -> FieldDifference | None:
    """Return the initializer at a position of the external data."""
    for tensor in tensors_of(model):
        place = {entry.key: entry.value for entry in tensor.external_data}
        offset = int(place.get("offset", 0))
        if place and offset <= position < offset + int(place.get("length", 0)):
            item_bytes = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
            element = f"element {(position - offset) // int(item_bytes)}"
            where = ("initializer", tensor.name, "external data")
            return FieldDifference(*where, element, "another value")
    return None


def differences(
    first: Message, second: Message, place: FieldDifference | None = None
) -> Iterator[FieldDifference]:
    """Yield the differing fields of two messages, in file order."""
    place = place or FieldDifference()
    here = {field.name: value for field, value in first.ListFields()}
    there = {field.name: value for field, value in second.ListFields()}
    if isinstance(first, TensorProto) and isinstance(second, TensorProto):
        same_shape = first.data_type == second.data_type and first.dims == second.dims
        inside = TensorProto.EXTERNAL not in (first.data_location, second.data_location)
        if same_shape and inside and first.raw_data != second.raw_data:
            a, b = (numpy_helper.to_array(tensor).reshape(-1) for tensor in (first, second))
            # bit by bit: the files differ there, even if both values are NaN or zero
            bits = (np.ascontiguousarray(one).view(np.uint8).reshape(a.size, -1) for one in (a, b))
            unequal = np.not_equal(*bits).any(axis=1)
            index = int(unequal.argmax())
            more = f" (of {int(unequal.sum())} of {a.size})" if a.size > 1 else ""
            yield place.at("values", f"{a[index]} at element {index}", f"{b[index]}{more}")
            here.pop("raw_data", None), there.pop("raw_data", None)
    for name in dict.fromkeys((*here, *there)):
        old, new = here.get(name), there.get(name)
        if any(
            not isinstance(value, (str, bytes, Message)) and hasattr(value, "__len__")
            for value in (old, new)
        ):
            yield from _members(name, list(old or ()), list(new or ()), place)
        elif isinstance(old, Message) and isinstance(new, Message):
            yield from differences(old, new, place.at(name))
        elif old != new:
            yield place.at(name, old, new)


def _members(
    name: str, first: Sequence[Any], second: Sequence[Any], place: FieldDifference
) -> Iterator[FieldDifference]:
    """Yield the differences between the members of a repeated field."""
    if not all(isinstance(member, Message) for member in (*first, *second)):
        if first != second:
            yield place.at(name, first, second)
        return
    sides: list[list[str]] = []
    for side in (first, second):
        labels = []
        for at, member in enumerate(side):  # by name, or else by first output
            fields = {field.name: value for field, value in member.ListFields()}
            label = next((str(fields[key]) for key in _NAMES if key in fields), "")
            labels.append(label or str(next(iter(fields.get("output", ())), "")) or f"[{at}]")
        sides.append(labels)
    labels, others = sides
    if labels == others:
        for label, old, new in zip(labels, first, second, strict=True):
            if old != new:
                named = FieldDifference(_KINDS[name], label) if name in _KINDS else None
                yield from differences(old, new, named or place.at(f"{name} {label}"))
    elif sorted(labels) == sorted(others):
        pairs = enumerate(zip(labels, others, strict=True))
        at, (label, other) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
        yield place.at(f"order of {name}", f"{label} at {at}", f"{other} there")
    else:
        removed = [label for label in labels if label not in others]
        added = [label for label in others if label not in labels]
        texts = [
            f"{len(side)}, with {only[0]}" if only else str(len(side))
            for side, only in ((labels, removed), (others, added))
        ]
        if name in _KINDS:
            changed = (removed or added or [""])[0]
            yield FieldDifference(_KINDS[name], changed, name, *texts)
        else:
            yield place.at(name, *texts)


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    text = f"{len(value)} bytes" if isinstance(value, bytes) else " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
