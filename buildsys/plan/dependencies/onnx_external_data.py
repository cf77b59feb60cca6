"""External data files of an ONNX file, found without onnx."""

from __future__ import annotations

from buildsys.system.protobuf import byte_fields, opened

# field numbers in onnx.proto3 of the messages through which a tensor can be reached
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
    """Return the external data files, relative to the folder of ``path``.

    An invalid file has none: its own digest is in the key, and the stage will report the error.
    Raises: OSError: the file cannot be read.
    """
    locations = set()
    with opened(path) as content:
        waiting = [("model", 0, len(content))]
        try:
            while waiting:
                message, begin, end = waiting.pop()
                inner = _FIELDS[message]
                for number, start, stop in byte_fields(content, begin, end):
                    if inner.get(number) == "entry":
                        fields = byte_fields(content, start, stop)
                        entry = {field: content[first:last] for field, first, last in fields}
                        if entry.get(_KEY) == _LOCATION:
                            locations.add(entry.get(_VALUE, b"").decode())
                    elif number in inner:
                        waiting.append((inner[number], start, stop))
        except (IndexError, ValueError):  # truncated, or not protobuf
            return []
    return sorted(locations)
