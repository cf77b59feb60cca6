"""Rules for running ExecuTorch engines, and their files."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.system.compatibility.engine_files import Header, Reason, Record
from buildsys.system.compatibility.rules import older_library
from buildsys.system.protobuf import Content

_FORMAT, _HEADER = b"ET", b"eh00"  # the flatbuffer's, then the sizes' magic


def read_header(content: Content) -> Header | None:
    """Read the facts in a program, with the size that the file should have."""
    if content[4:6] != _FORMAT or content[8:12] != _HEADER:
        return None
    program, base, data = (int.from_bytes(content[at : at + 8], "little") for at in (16, 24, 32))
    length = int.from_bytes(content[12:16], "little")
    whole = max(program, base + (data if length >= 32 else 0))
    return Header("executorch", whole_bytes=whole, truncated=len(content) < whole)


def reasons(record: Record, here: str) -> Iterator[Reason]:
    """Yield the reason of an older version ``here`` ("": not installed)."""
    yield from older_library(
        record, here, "an older runtime may not support what the newer one wrote"
    )
