"""NVIDIA's management library through ctypes, and its answers.

Source: NVML API reference, "Initialization and Cleanup", "nvmlReturn_t".
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from buildsys.errors import BuildsysError

Handle = ctypes.c_void_p  # of a GPU
_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = (
    96  # more than any of NVML's *_BUFFER_SIZE constants for the fields that are read here
)


class GpuError(BuildsysError):
    """The driver's library is missing or refuses to answer."""


@contextmanager
def session() -> Iterator[ctypes.CDLL]:
    """Open the library, and close it.

    Raises: GpuError: no driver, or one that does not work.
    """
    try:
        nvml = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise GpuError(f"{_LIBRARY}: {error}") from error
    check(nvml.nvmlInit_v2())
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def check(status: int) -> None:
    """Raise GpuError where ``status`` is not success."""
    if status:
        raise GpuError(f"NVML answers with error {status}")


def text(query: Any, *handle: Handle) -> str:
    """Return what a query writes as text."""
    buffer = ctypes.create_string_buffer(_TEXT_BYTES)
    check(query(*handle, buffer, len(buffer)))
    return buffer.value.decode(errors="replace")
