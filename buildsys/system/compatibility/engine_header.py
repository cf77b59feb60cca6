"""The first bytes of an engine file, read without any library.

The header of TensorRT-RTX engines was found by inspection: ``vtrt``, at byte 16 the size of the
file in 8 bytes, at byte 24 the version in 4. A TensorRT engine (``ftrt``) with its file's size in
that place is assumed to have its version there, too.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_MAGIC = {b"vtrt": "tensorrt_rtx", b"ftrt": "tensorrt", b"ptrt": "tensorrt"}
_SIZE_AT, _VERSION_AT, _HEADER_BYTES = 16, 24, 28
_WIRE_BYTES = {1: 8, 5: 4}  # protobuf: fixed64, fixed32
_VARINT, _LENGTH = 0, 2
_MORE = 0x80  # the bit of a varint's byte that another one follows
_ONNX_FIELDS, _GRAPH = {1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26}, 7  # of ModelProto


@dataclass(frozen=True)
class Header:
    """The facts in an engine file. ``backend`` is "" for an unknown kind."""

    backend: str
    version: str = ""
    whole_bytes: int | None = None  # the size the file should have, if stated
    truncated: bool = False


def read_header(engine: Path) -> Header:
    """Return the facts in an engine file. Raises: OSError: it cannot be read."""
    size = engine.stat().st_size
    with engine.open("rb") as stream:
        head = stream.read(_HEADER_BYTES)
        backend = _MAGIC.get(head[:4], "")
        if not backend:
            stream.seek(0)
            return _walk_onnx(stream, size)
    if len(head) < _HEADER_BYTES:
        return Header(backend, truncated=True)
    whole = struct.unpack_from("<Q", head, _SIZE_AT)[0]
    version = ".".join(map(str, head[_VERSION_AT:_HEADER_BYTES]))
    if backend == "tensorrt_rtx":
        return Header(backend, version, whole, truncated=size < whole)
    return Header(backend, version, whole) if whole == size else Header(backend)


def _walk_onnx(stream: BinaryIO, size: int) -> Header:
    """Return the facts in an ONNX file. A whole one ends with its last field."""
    seen = set[int]()
    while (place := stream.tell()) < size:
        tag = _read_varint(stream)
        field, wire = tag >> 3, tag & 7
        if tag < 0 or field not in _ONNX_FIELDS or wire not in (_VARINT, _LENGTH, *_WIRE_BYTES):
            return Header("onnxruntime", truncated=True) if place and _GRAPH in seen else Header("")
        seen.add(field)
        count = _WIRE_BYTES[wire] if wire in _WIRE_BYTES else _read_varint(stream)
        if count < 0 or (wire != _VARINT and stream.tell() + count > size):
            return Header("onnxruntime", truncated=True)
        if wire != _VARINT:
            stream.seek(count, os.SEEK_CUR)
    return Header("onnxruntime", truncated=_GRAPH not in seen) if seen else Header("")


def _read_varint(stream: BinaryIO) -> int:
    """Return the number at this position, or -1 at the end."""
    number = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte:
            break
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < _MORE:
            return number
    return -1
