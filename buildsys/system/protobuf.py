"""Reader of protocol buffer files for interpreters without the protobuf library.

Source: Protocol Buffers documentation, "Encoding".
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_LARGEST_SHIFT = 63
Content = mmap.mmap | bytes


class Field(NamedTuple):
    """The number of a length-delimited field and the range of its bytes."""

    number: int
    start: int
    stop: int


@contextmanager
def opened(path: str | Path) -> Iterator[Content]:
    """Map a file into memory; an empty one gives b"". Raises: OSError."""
    with open(path, "rb") as file:  # noqa: PTH123 - often a string here
        try:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file
            yield b""
            return
        with content:
            yield content


def byte_fields(content: Content, start: int, stop: int) -> Iterator[Field]:
    """Yield the length-delimited fields of a message without touching their bytes.

    Raises: ValueError, IndexError: the message is malformed or truncated.
    """
    while start < stop:
        tag, start = varint(content, start)
        kind = tag & 7
        if kind == _BYTES:
            size, start = varint(content, start)
            if start + size > stop:
                raise ValueError("a field is longer than its message")
            yield Field(tag >> 3, start, start + size)
            start += size
        elif kind == _VARINT:
            _, start = varint(content, start)
        elif kind in (_FIXED_64, _FIXED_32):
            start += 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"unknown wire type {kind}")


def varint(content: Content, position: int) -> tuple[int, int]:
    """Return the number at ``position`` and the position after it.

    Raises: IndexError: the content ends in it. ValueError: it has more than 64 bits.
    """
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _LARGEST_SHIFT:
            raise ValueError("a varint is too long")
