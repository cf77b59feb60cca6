"""Arrays of .npz files: whole, or one ValueError."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buildsys.onnx_graphs.tensors import NpzFile


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_all_kinds_are_read_as_numpy_does(
    tmp_path: Path, save: Callable[..., None]
) -> None:
    arrays: dict[str, Any] = {
        "floats": np.arange(12.0, dtype=np.float32).reshape(3, 4),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "scalar": np.array(True),
        "empty": np.empty((0, 3), np.int8),
        "words": np.array(["a", "βγ"]),
        "big": np.arange(3, dtype=">i4"),
        "large": np.random.default_rng(0).integers(0, 9, 3 << 20, np.uint8),
        "a/b.c": np.ones(1),
    }
    save(tmp_path / "x.npz", **arrays)
    read = NpzFile(tmp_path / "x.npz")
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        assert np.array_equal(read[name], array)
        assert read[name].flags.writeable
    with pytest.raises(KeyError):
        read["other"]


def header(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def member(content: bytes, compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return an archive of one array ``x``."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("x.npy", content)
    return stream.getvalue()


HONEST = member(header("(1,)") + bytes(4))
DEFLATED = member(
    header("(4000,)", "'|u1'") + np.random.default_rng(0).bytes(4000), zipfile.ZIP_DEFLATED
)
HOSTILE: dict[str, bytes] = {
    "a claimed shape": member(header("(1000000000000,)") + bytes(4)),
    "a negative shape": member(header("(-1, -1)") + bytes(4)),
    "a nested header": member(header("(" * 4000 + ")" * 4000)),
    "no array": member(b"PK" * 10),
    "a short array": member(header("(5,)") + bytes(4)),
    "Python objects": member(header("(1,)", "'|O'") + bytes(8)),
    "a damaged array": HONEST.replace(b"shape", b"shade", 1),
    "a truncated file": HONEST[:-30],
    "a damaged stream": DEFLATED[:90] + b"\xff" * 20 + DEFLATED[110:],
    "an empty file": b"",
    "a single array": header("(1,)") + bytes(4),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_error(tmp_path: Path, name: str) -> None:
    file = tmp_path / "x.npz"
    file.write_bytes(HOSTILE[name])
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        NpzFile(file)["x"]
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        NpzFile(tmp_path / "x.npz")
