"""The first field in which two ONNX files differ: ``python -m buildsys.onnx_graphs.first_difference < requests.json``.

For a process of its own: it loads onnx, which ``doit`` itself does not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import TensorProto, numpy_helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import DATA_SUFFIX, load_model, tensors_of

_LONGEST = 120
_KINDS = {
    "node": "node",
    "initializer": "initializer",
    "metadata_props": "metadata",
    "value_info": "value",
}
_NAMES = ("name", "key", "domain")  # what tells one of several from the others


@dataclass(frozen=True)
class Difference:
    """One field: ``kind`` is node, initializer, metadata, value, input, output, function or model."""

    kind: str
    name: str  # of that node, initializer …
    field: str
    first: str
    second: str

    def sentence(self) -> str:
        """Return e.g. ``initializer fc.bias: raw_data: 0.5 and 0.25 at element 3``."""
        where = ": ".join(part for part in (f"{self.kind} {self.name}".strip(), self.field) if part)
        return f"{where}: {self.first} and {self.second}"


def differences(first: onnx.ModelProto, second: onnx.ModelProto) -> Iterator[Difference]:
    """Yield the fields in which two models differ, in the order of the format."""
    yield from _fields(first, second, _Place())


def difference_at(model: onnx.ModelProto, position: int) -> Difference | None:
    """Return the initializer whose values lie at a position of the model's external data."""
    for tensor in tensors_of(model):
        place = {entry.key: entry.value for entry in tensor.external_data}
        offset = int(place.get("offset", 0))
        if place and offset <= position < offset + int(place.get("length", 0)):
            element = (position - offset) // _item_bytes(tensor)
            return Difference(
                "initializer", tensor.name, "external data", f"element {element}", "another value"
            )
    return None


@dataclass(frozen=True)
class _Place:
    """Where in a model a message lies."""

    kind: str = "model"
    name: str = ""
    path: tuple[str, ...] = ()

    def field(self, name: str) -> _Place:
        return _Place(self.kind, self.name, (*self.path, name))

    def member(self, field: str, message: Message, index: int) -> _Place:
        """Return the place of one of several messages; nodes and the like start a new name."""
        label = _label(message, index)
        if field in _KINDS or field in ("input", "output", "functions"):
            return _Place(_KINDS.get(field, field.removesuffix("s")), label)
        return _Place(self.kind, self.name, (*self.path, f"{field} {label}"))

    def difference(self, first: Any, second: Any) -> Difference:
        path = [part for part in self.path if part != "graph" or len(self.path) == 1]
        return Difference(self.kind, self.name, ".".join(path), _shown(first), _shown(second))


def _fields(first: Message, second: Message, place: _Place) -> Iterator[Difference]:
    here = {field.name: value for field, value in first.ListFields()}
    there = {field.name: value for field, value in second.ListFields()}
    if (
        isinstance(first, TensorProto)
        and isinstance(second, TensorProto)
        and _values_differ(first, second)
    ):
        yield place.field("values").difference(*_first_values(first, second))
        here.pop("raw_data", None), there.pop("raw_data", None)
    for name in dict.fromkeys((*here, *there)):
        old, new = here.get(name), there.get(name)
        if _is_repeated(old) or _is_repeated(new):
            yield from _members(name, list(old or ()), list(new or ()), place)
        elif isinstance(old, Message) and isinstance(new, Message):
            yield from _fields(old, new, place.field(name))
        elif old != new:
            yield place.field(name).difference(old, new)


def _members(
    name: str, first: Sequence[Any], second: Sequence[Any], place: _Place
) -> Iterator[Difference]:
    if not all(isinstance(member, Message) for member in (*first, *second)):
        if first != second:
            yield place.field(name).difference(first, second)
        return
    labels, others = (
        [_label(member, index) for index, member in enumerate(side)] for side in (first, second)
    )
    if labels != others:
        yield _other_members(name, labels, others, place)
        return
    for index, (old, new) in enumerate(zip(first, second, strict=True)):
        if old != new:
            yield from _fields(old, new, place.member(name, old, index))


def _other_members(
    name: str, first: Sequence[str], second: Sequence[str], place: _Place
) -> Difference:
    if sorted(first) == sorted(second):
        index = next(
            index
            for index, pair in enumerate(zip(first, second, strict=True))
            if pair[0] != pair[1]
        )
        return place.field(f"order of {name}").difference(
            f"{first[index]} at {index}", f"{second[index]} there"
        )
    alone = (
        [label for label in first if label not in second],
        [label for label in second if label not in first],
    )
    texts = [f"{len(side)}, with {only[0]}" if only else str(len(side)) for side, only in
             zip((first, second), alone, strict=True)]  # fmt: skip
    kind = _KINDS.get(name, "")
    return (
        Difference(kind, (alone[0] or alone[1] or [""])[0], name, *texts)
        if kind
        else place.field(name).difference(*texts)
    )


def _label(message: Any, index: int) -> str:
    names = {field.name: value for field, value in message.ListFields()}
    label = next((str(names[name]) for name in _NAMES if name in names), "")
    outputs = names.get("output")
    return label or (str(outputs[0]) if outputs else f"[{index}]")


def _is_repeated(value: Any) -> bool:
    return (
        value is not None
        and not isinstance(value, (str, bytes, Message))
        and hasattr(value, "__len__")
    )


def _values_differ(first: TensorProto, second: TensorProto) -> bool:
    same = first.data_type == second.data_type and list(first.dims) == list(second.dims)
    inside = TensorProto.EXTERNAL not in (first.data_location, second.data_location)
    return same and inside and first.raw_data != second.raw_data


def _first_values(first: TensorProto, second: TensorProto) -> tuple[str, str]:
    here, there = (numpy_helper.to_array(tensor).reshape(-1) for tensor in (first, second))
    unequal = (here != there) & ~((here != here) & (there != there))
    index = int(unequal.argmax())
    more = f" (of {int(unequal.sum())} of {here.size})" if here.size > 1 else ""
    return f"{here[index]} at element {index}", f"{there[index]}{more}"


def _item_bytes(tensor: TensorProto) -> int:
    return int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _shown(value: Any) -> str:
    text = (
        "nothing"
        if value is None
        else f"{len(value)} bytes"
        if isinstance(value, bytes)
        else str(value)
    )
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _answer(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first difference of two files, or of two files of external data, None where none is found."""
    paths = [Path(request["first"]), Path(request["second"])]
    try:
        if paths[0].name.endswith(DATA_SUFFIX):
            graph = paths[0].with_name(paths[0].name.removesuffix(DATA_SUFFIX))
            found = difference_at(load_model(graph, external_data=False), request["first_byte"])
        else:
            first, second = (load_model(path, external_data=False) for path in paths)
            found = next(differences(first, second), None)
    except StageError:
        return None
    return None if found is None else {**asdict(found), "sentence": found.sentence()}


if __name__ == "__main__":
    json.dump([_answer(request) for request in json.load(sys.stdin)], sys.stdout)
