"""Which files lie beside an ONNX file and belong to it, read off its protobuf fields without the onnx library."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.system.protobuf import Content, byte_fields, opened

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
    with opened(path) as content:
        try:
            return sorted(set(_locations(content)))
        except (IndexError, ValueError):  # cut short, or not protobuf at all
            return []


def _locations(content: Content) -> Iterator[str]:
    waiting = [("model", 0, len(content))]
    while waiting:
        kind, begin, end = waiting.pop()
        inner = _FIELDS[kind]
        for number, start, stop in byte_fields(content, begin, end):
            if inner.get(number) == "entry":
                entry = {
                    field: content[first:last]
                    for field, first, last in byte_fields(content, start, stop)
                }
                if entry.get(_KEY) == _LOCATION:
                    yield entry[_VALUE].decode() if _VALUE in entry else ""
            elif number in inner:
                waiting.append((inner[number], start, stop))
