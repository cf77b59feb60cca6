"""What the first bytes of an engine file tell, without any library.

The header of a TensorRT-RTX engine was read off real ones: ``vtrt``, at byte 16 the size of the whole file in 8
bytes, at byte 24 the version in 4. Where a TensorRT engine (``ftrt``) has its file's size at the same place, its
version is believed as well.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from buildsys.system.protobuf import opened, varint

_MAGIC = {b"vtrt": "tensorrt_rtx", b"ftrt": "tensorrt", b"ptrt": "tensorrt"}
_SIZE_AT, _VERSION_AT, _HEADER_BYTES = 16, 24, 28
_WIRE_BYTES = {1: 8, 5: 4}  # protobuf: fixed64, fixed32
_VARINT, _LENGTH = 0, 2
_ONNX_FIELDS, _GRAPH = {1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26}, 7  # of ModelProto


@dataclass(frozen=True)
class Header:
    """What a file says of itself; an empty ``backend``: it is no engine that is known here."""

    backend: str
    version: str = ""
    whole_bytes: int | None = None  # what the file should have, where it says so
    truncated: bool = False


def read_header(engine: Path) -> Header:
    """Return what the file's own bytes tell. Raises: OSError: it cannot be read."""
    size = engine.stat().st_size
    with engine.open("rb") as stream:
        head = stream.read(_HEADER_BYTES)
        backend = _MAGIC.get(head[:4], "")
        if backend:
            return _tensorrt(backend, head, size)
    return _onnx(engine, size)


def _tensorrt(backend: str, head: bytes, size: int) -> Header:
    if len(head) < _HEADER_BYTES:
        return Header(backend, truncated=True)
    whole = struct.unpack_from("<Q", head, _SIZE_AT)[0]
    version = ".".join(map(str, head[_VERSION_AT:_HEADER_BYTES]))
    if backend == "tensorrt_rtx":
        return Header(backend, version, whole, truncated=size < whole)
    return Header(backend, version, whole) if whole == size else Header(backend)


def _onnx(engine: Path, size: int) -> Header:
    """Walk over the fields of a protobuf message: an ONNX file ends with its last field."""
    seen = set[int]()
    position = 0
    with opened(engine) as content:
        while position < size:
            start = position
            try:
                tag, position = varint(content, position)
            except (IndexError, ValueError):
                tag = 0
            field, wire = tag >> 3, tag & 7
            if field not in _ONNX_FIELDS or wire not in (_VARINT, _LENGTH, *_WIRE_BYTES):
                truncated = start > 0 and _GRAPH in seen
                return Header("onnxruntime", truncated=True) if truncated else Header("")
            seen.add(field)
            try:
                if wire in _WIRE_BYTES:
                    position += _WIRE_BYTES[wire]
                else:
                    value, position = varint(content, position)
                    position += value if wire == _LENGTH else 0
            except (IndexError, ValueError):
                return Header("onnxruntime", truncated=True)
            if position > size:
                return Header("onnxruntime", truncated=True)
    return Header("onnxruntime", truncated=_GRAPH not in seen) if seen else Header("")
