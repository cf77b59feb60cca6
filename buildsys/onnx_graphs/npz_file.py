"""Arrays of .npz and .npy files, with one kind of error for all that can be wrong with them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# raised by numpy and zipfile for damaged files
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, SyntaxError,
    TypeError, AttributeError, MemoryError, OverflowError, RecursionError,
)  # fmt: skip


class NpzFile(Mapping[str, npt.NDArray[Any]]):
    """The arrays of an .npz file by name, read on access.

    Raises: OSError, ValueError: the file, or the array accessed, cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _one_error(), zipfile.ZipFile(path) as archive:
            self._members = {name.removesuffix(".npy"): name for name in archive.namelist()}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return an array. Raises: KeyError: there is none of this name."""
        member = self._members[name]
        with (
            _one_error(f"array {name}: "),
            zipfile.ZipFile(self._path) as archive,
            archive.open(member) as stream,
        ):
            return np.lib.format.read_array(stream, allow_pickle=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Return the array of an .npy file.

    Raises: OSError, ValueError: the file cannot be read.
    """
    with _one_error(), path.open("rb") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


@contextmanager
def _one_error(where: str = "") -> Iterator[None]:
    try:
        yield
    except (ValueError, *_DAMAGE) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        problem = "it is not an array of numpy" if "magic string" in first else first
        raise ValueError(f"{where}{problem}") from error
