"""Calls into the driver's library, and its errors by name."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

from buildsys.errors import StageError

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Return the driver's library.

    Raises: OSError: there is none on this machine.
    """
    return ctypes.CDLL(_LIBRARY)


def status_of(function: str, *arguments: Any) -> int:
    """Return the status that a function of the driver answers with; 0 is success."""
    return int(getattr(library(), function)(*arguments))


def call(function: str, *arguments: Any) -> None:
    """Call a function of the driver.

    Raises: StageError: it failed; names the function and CUDA's error.
    """
    status = status_of(function, *arguments)
    if status:
        raise StageError(f"the CUDA driver's {function} failed: {error_text(status)}")


def release(function: str, *arguments: Any) -> None:
    """Give something back, whatever the driver says.

    It answers with errors of earlier work, which whoever waited for that work has told; raised here they would take
    the place of the first error.
    """
    status_of(function, *arguments)


def error_text(status: int) -> str:
    """Return CUDA's name of an error with its number."""
    name = ctypes.c_char_p()
    if library().cuGetErrorName(status, ctypes.byref(name)) or name.value is None:
        return f"error {status}"
    return f"{name.value.decode()}, error {status}"
