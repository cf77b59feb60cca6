"""Which files lie beside an ONNX file and belong to it, read off its protobuf fields without the onnx library."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# field numbers of onnx.proto3: the messages through which a tensor can be reached

_FIELDS = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_KEY, _VALUE, _LOCATION = 1, 2, b"location"


def external_files(path: str) -> list[str]:
    """Return the files that the tensors of an ONNX file name as their place, relative to its folder.

    A file that is no protobuf has none: its own digest is in the key, and the stage will say what is wrong.
    Raises: OSError: the file cannot be read.
    """
    with open(path, "rb") as file:  # noqa: PTH123 - paths are strings here
        try:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file
            return []
        with content:
            try:
                return sorted(set(_locations(content)))
            except (IndexError, ValueError):  # cut short, or not protobuf at all
                return []


def _locations(content: mmap.mmap) -> Iterator[str]:
    waiting = [("model", 0, len(content))]
    while waiting:
        kind, begin, end = waiting.pop()
        inner = _FIELDS[kind]
        for number, start, stop in _byte_fields(content, begin, end):
            if inner.get(number) == "entry":
                entry = {field: content[first:last] for field, first, last in _byte_fields(content, start, stop)}
                if entry.get(_KEY) == _LOCATION:
                    yield entry[_VALUE].decode() if _VALUE in entry else ""
            elif number in inner:
                waiting.append((inner[number], start, stop))


def _byte_fields(content: mmap.mmap, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and stop of each field that has bytes; their content is not touched."""
    while begin < end:
        tag, begin = _varint(content, begin)
        kind = tag & 7
        if kind == _BYTES:
            size, begin = _varint(content, begin)
            if begin + size > end:
                raise ValueError("a field beyond its message")
            yield tag >> 3, begin, begin + size
            begin += size
        elif kind == _VARINT:
            _, begin = _varint(content, begin)
        elif kind in (_FIXED64, _FIXED32):
            begin += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("not a kind of field")


def _varint(content: mmap.mmap, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("not a number")
