"""Memory of a GPU, and memory of the host that a GPU copies from and to while the host goes on.

Source: CUDA Driver API reference, "Memory Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from buildsys.backends.cuda.calls import OUT_OF_MEMORY, call, error_text, release, status_of
from buildsys.backends.cuda.streams import Stream
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class Buffer:
    """Device memory. Its device must be current for every call.

    Raises: StageError: the GPU has not that much left; says how much was asked for, and how much is free.
    """

    def __init__(self, size_bytes: int, stream: Stream) -> None:
        self._address = ctypes.c_uint64()
        self._stream = stream  # that the copies which are waited for go through
        self.size_bytes = size_bytes
        status = status_of(
            "cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(max(1, size_bytes))
        )
        if status == OUT_OF_MEMORY:
            raise out_of_memory(size_bytes)
        if status:
            raise StageError(f"the CUDA driver's cuMemAlloc_v2 failed: {error_text(status)}")

    @property
    def address(self) -> int:
        """Return the device address."""
        return int(self._address.value)

    def upload(self, values: Array) -> None:
        """Copy an array into the buffer, and wait for it: the source may be freed at once."""
        source = np.ascontiguousarray(values)
        self._copy_in(source.ctypes.data, source.nbytes, self._stream)
        self._stream.synchronize()

    def download(self, target: Array) -> None:
        """Fill a contiguous array from the buffer after all work on the stream."""
        self._copy_out(target.ctypes.data, target.nbytes, self._stream)
        self._stream.synchronize()

    def copy_from(self, source: HostBuffer, stream: Stream) -> None:
        """Put a copy from the host on ``stream``; it is done when the stream gets there."""
        self._copy_in(source.address, source.size_bytes, stream)

    def copy_to(self, target: HostBuffer, stream: Stream) -> None:
        """Put a copy to the host on ``stream``; it is done when the stream gets there."""
        self._copy_out(target.address, target.size_bytes, stream)

    def release(self) -> None:
        """Free the memory."""
        release("cuMemFree_v2", self._address)

    def _copy_in(self, source: int, size_bytes: int, stream: Stream) -> None:
        self._check(size_bytes)
        if size_bytes:
            amount = ctypes.c_size_t(size_bytes)
            call(
                "cuMemcpyHtoDAsync_v2",
                self._address,
                ctypes.c_void_p(source),
                amount,
                stream.argument,
            )

    def _copy_out(self, target: int, size_bytes: int, stream: Stream) -> None:
        self._check(size_bytes)
        if size_bytes:
            amount = ctypes.c_size_t(size_bytes)
            call(
                "cuMemcpyDtoHAsync_v2",
                ctypes.c_void_p(target),
                self._address,
                amount,
                stream.argument,
            )

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self.size_bytes:
            raise ValueError(f"{size_bytes} bytes do not fit a device buffer of {self.size_bytes}")


class HostBuffer:
    """Page-locked memory of the host: only from and to such memory does a copy run beside the host's own work."""

    def __init__(self, size_bytes: int) -> None:
        self._address = ctypes.c_void_p()
        self.size_bytes = size_bytes
        call("cuMemAllocHost_v2", ctypes.byref(self._address), ctypes.c_size_t(max(1, size_bytes)))

    @property
    def address(self) -> int:
        """Return the host address."""
        return self._address.value or 0

    def array(self) -> Array:
        """Return the memory as bytes; not for use after ``release``."""
        memory = (ctypes.c_uint8 * self.size_bytes).from_address(self.address)
        return np.ctypeslib.as_array(memory)

    def fill(self, values: Array) -> None:
        """Copy an array into the memory."""
        source = np.ascontiguousarray(values)
        if source.nbytes != self.size_bytes:
            raise ValueError(
                f"{source.nbytes} bytes are not the {self.size_bytes} of a host buffer"
            )
        ctypes.memmove(self.address, source.ctypes.data, source.nbytes)

    def release(self) -> None:
        """Free the memory."""
        release("cuMemFreeHost", self._address)


def free_and_total() -> tuple[int, int]:
    """Return how much memory of the current GPU is free, and how much it has, in bytes."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def out_of_memory(
    asked_bytes: int, measured: Callable[[], tuple[int, int]] = free_and_total
) -> StageError:
    """Return the error for memory that the GPU has not left."""
    free, total = measured()
    return StageError(
        f"the GPU is out of memory: {in_units(asked_bytes)} were asked for, and {in_units(free)} of its"
        f" {in_units(total)} are free (CUDA_ERROR_OUT_OF_MEMORY)",
        "end other programs on this GPU (nvidia-smi lists them), or ask for less: smaller dims, fewer in flight",
    )


def in_units(size_bytes: int) -> str:
    """Return a size as people write it, such as ``1.5 GiB``."""
    amount, unit = float(size_bytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.4g} {_UNITS[unit]}"
