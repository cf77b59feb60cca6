"""Arrays of .npz and .npy files, without trust in their claimed sizes.

``np.load`` allocates the size in an array's header, unpacks a header of any length, and unpacks a
compressed array to a thousand times its size: a few kilobytes can exhaust the memory.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

# Compressed data that grows by more is a bomb, or constant.
_MAX_RATIO = 20
_UNLIMITED_BYTES = 256 << 20  # unpacked, at any ratio
_MAX_HEADER_BYTES = 10_000  # as in numpy
_BLOCK_BYTES = 1 << 20
_READERS = {
    (1, 0): (2, np.lib.format.read_array_header_1_0),
    (2, 0): (4, np.lib.format.read_array_header_2_0),
}


class NpzFile(Mapping[str, npt.NDArray[Any]]):
    """The arrays of an .npz file by name, read on access.

    Raises: OSError, ValueError: the file, or the array accessed, cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
                members, size = archive.infolist(), stream.seek(0, io.SEEK_END)
        except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
            raise ValueError(str(error)) from error
        if sum(member.compress_size for member in members) > size:
            raise ValueError("its arrays overlap")
        self._members = {member.filename.removesuffix(".npy"): member for member in members}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return an array. Raises: KeyError: there is none of this name."""
        member = self._members[name]
        _require_bounded(member, name)
        try:
            with (
                self._path.open("rb") as stream,
                zipfile.ZipFile(stream) as archive,
                archive.open(member) as content,
            ):
                return _read(content, member.file_size, name)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise ValueError(f"array {name}: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Return the array of an .npy file.

    Raises: OSError, ValueError: the file cannot be read.
    """
    with path.open("rb") as stream:
        return _read(stream, path.stat().st_size, path.name)


def _require_bounded(member: zipfile.ZipInfo, name: str) -> None:
    """Refuse an array much larger than its part of the file.

    Raises: ValueError: it would be much larger.
    """
    packed, unpacked = member.compress_size, member.file_size
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"array {name} has an unknown compression")
    if member.compress_type == zipfile.ZIP_STORED and packed != unpacked:
        raise ValueError(f"array {name} has {packed} bytes instead of {unpacked}")
    if unpacked > max(_UNLIMITED_BYTES, _MAX_RATIO * packed):
        raise ValueError(
            f"array {name} would unpack from {packed >> 10} KiB to {unpacked >> 20} MiB; save such"
            " an array with numpy.savez, without compression"
        )


def _read(content: IO[bytes], size: int, name: str) -> npt.NDArray[Any]:
    """Return the array of ``size`` bytes with its header."""
    magic = content.read(8)
    version = (magic[6], magic[7]) if len(magic) == 8 else (0, 0)
    if magic[:6] != b"\x93NUMPY" or version not in _READERS:
        raise ValueError(f"{name} is not an array")
    digits, read_header = _READERS[version]
    length = content.read(digits)
    header_bytes = int.from_bytes(length, "little")
    if header_bytes > _MAX_HEADER_BYTES:
        raise ValueError(f"array {name} has a header of {header_bytes} bytes")
    try:
        header = io.BytesIO(length + content.read(header_bytes))
        shape, is_fortran, dtype = read_header(header)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"the header of array {name} cannot be parsed") from error
    if dtype.hasobject:
        raise ValueError(f"array {name} contains Python objects")
    claimed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or claimed != size - len(magic) - digits - header_bytes:
        raise ValueError(f"array {name} has not the size that its header claims")
    raw = np.empty(claimed, np.uint8)
    view = raw.data
    for start in range(0, claimed, _BLOCK_BYTES):
        block = content.read(min(_BLOCK_BYTES, claimed - start))
        view[start : start + len(block)] = block
        if not block:
            raise ValueError(f"array {name} ends early")
    values = raw.view(dtype) if claimed else np.empty(math.prod(shape), dtype)
    return values.reshape(shape, order="F" if is_fortran else "C")
