"""What the first bytes of an engine file tell, without any library.

The header of a TensorRT-RTX engine was read off real ones: ``vtrt``, at byte 16 the size of the whole file in 8
bytes, at byte 24 the version in 4. Where a TensorRT engine (``ftrt``) has its file's size at the same place, its
version is believed as well.
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
_MORE = 0x80  # a byte of a varint from here on is followed by another
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
        stream.seek(0)
        return _onnx(stream, size)


def _tensorrt(backend: str, head: bytes, size: int) -> Header:
    if len(head) < _HEADER_BYTES:
        return Header(backend, truncated=True)
    whole = struct.unpack_from("<Q", head, _SIZE_AT)[0]
    version = ".".join(map(str, head[_VERSION_AT:_HEADER_BYTES]))
    if backend == "tensorrt_rtx":
        return Header(backend, version, whole, truncated=size < whole)
    return Header(backend, version, whole) if whole == size else Header(backend)


def _onnx(stream: BinaryIO, size: int) -> Header:
    """Walk over the fields of a protobuf message: an ONNX file ends where its last field does."""
    seen = set[int]()
    while (place := stream.tell()) < size:
        tag = _varint(stream)
        field, wire = tag >> 3, tag & 7
        if tag < 0 or field not in _ONNX_FIELDS or wire not in (_VARINT, _LENGTH, *_WIRE_BYTES):
            return Header("onnxruntime", truncated=True) if place and _GRAPH in seen else Header("")
        seen.add(field)
        count = _WIRE_BYTES[wire] if wire in _WIRE_BYTES else _varint(stream)
        if count < 0 or (wire != _VARINT and stream.tell() + count > size):
            return Header("onnxruntime", truncated=True)
        if wire != _VARINT:
            stream.seek(count, os.SEEK_CUR)
    return Header("onnxruntime", truncated=_GRAPH not in seen) if seen else Header("")


def _varint(stream: BinaryIO) -> int:
    """Return the number at this place; -1 where the file ends in it."""
    number = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte:
            break
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < _MORE:
            return number
    return -1
