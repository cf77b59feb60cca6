"""The few calls of the CUDA driver that a backend needs, straight from the driver's own library.

An engine's inputs and outputs are plain buffers, so neither the CUDA toolkit nor a Python binding of it
is needed: what every machine with an NVIDIA GPU has, the driver, is enough.

Source: CUDA Driver API reference, "Device Management", "Primary Context Management", "Memory Management".
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.tensors import Array

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_NO_GPU = "the NVIDIA driver finds no GPU"


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as its driver describes it."""

    index: int
    name: str
    compute_capability: str  # "8.9"
    memory_bytes: int


@dataclass(frozen=True)
class Driver:
    """The CUDA driver of this machine and its GPUs; ``missing`` says why there are none."""

    cuda_version: str  # newest CUDA that the driver can run, "" without a driver
    gpus: tuple[Gpu, ...]
    missing: str = ""


@lru_cache(maxsize=1)
def find_driver() -> Driver:
    """Return what this machine has. A machine without a GPU is an answer, not an error."""
    try:
        library = _library()
    except OSError:
        return Driver("", (), "no NVIDIA driver is installed")
    status = library.cuInit(0)
    if status:
        return Driver("", (), _NO_GPU if status == _NO_DEVICE else f"the NVIDIA driver fails ({_text(status)})")
    version, count = ctypes.c_int(), ctypes.c_int()
    _call("cuDriverGetVersion", ctypes.byref(version))
    _call("cuDeviceGetCount", ctypes.byref(count))
    gpus = tuple(_gpu(index) for index in range(count.value))
    return Driver(f"{version.value // 1000}.{version.value % 1000 // 10}", gpus, "" if gpus else _NO_GPU)


class Device:
    """A GPU in use: its primary context, which CUDA libraries in this process share, and one stream.

    Everything made from it belongs to the thread that made it.
    """

    def __init__(self, index: int = 0) -> None:
        self._device = _handle(index)
        self._context = ctypes.c_void_p()
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._stream = ctypes.c_void_p()
        self._buffers: list[Buffer] = []
        try:
            with self.current():
                _call("cuStreamCreate", ctypes.byref(self._stream), ctypes.c_uint(1))  # CU_STREAM_NON_BLOCKING
        except StageError:
            _call("cuDevicePrimaryCtxRelease_v2", self._device)
            raise

    @property
    def stream(self) -> int:
        """Return the stream's handle as the number that other libraries take."""
        return self._stream.value or 0

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU the calling thread's, and give back the one it had."""
        _call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def allocate(self, size_bytes: int) -> Buffer:
        """Return new device memory; it lives until ``free`` or ``close``."""
        buffer = Buffer(self, size_bytes)
        self._buffers.append(buffer)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give one buffer back."""
        self._buffers.remove(buffer)
        buffer.release()

    def synchronize(self) -> None:
        """Wait until all work on the stream is done.

        Raises: StageError: the work failed.
        """
        _call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        """Give back the buffers, the stream and the context. A closed device cannot be used again."""
        if self._context.value is None:
            return
        with self.current():
            while self._buffers:
                self._buffers.pop().release()
            _call("cuStreamDestroy_v2", self._stream)
        self._context.value = None
        _call("cuDevicePrimaryCtxRelease_v2", self._device)


class Buffer:
    """Device memory. Its device must be current for every call."""

    def __init__(self, device: Device, size_bytes: int) -> None:
        self._device = device
        self._address = ctypes.c_uint64()
        self.size_bytes = size_bytes
        _call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(max(1, size_bytes)))

    @property
    def address(self) -> int:
        """Return the device address."""
        return int(self._address.value)

    def upload(self, values: Array) -> None:
        """Copy an array into the buffer, and wait for it: the source may be freed at once."""
        source = np.ascontiguousarray(values)
        self._check(source.nbytes)
        if source.nbytes:
            pointer = ctypes.c_void_p(source.ctypes.data)
            handle = ctypes.c_void_p(self._device.stream)
            _call("cuMemcpyHtoDAsync_v2", self._address, pointer, ctypes.c_size_t(source.nbytes), handle)
            self._device.synchronize()

    def download(self, target: Array) -> None:
        """Fill a contiguous array from the buffer after all work on the stream."""
        self._check(target.nbytes)
        if target.nbytes:
            pointer = ctypes.c_void_p(target.ctypes.data)
            handle = ctypes.c_void_p(self._device.stream)
            _call("cuMemcpyDtoHAsync_v2", pointer, self._address, ctypes.c_size_t(target.nbytes), handle)
        self._device.synchronize()

    def release(self) -> None:
        """Free the memory."""
        _call("cuMemFree_v2", self._address)

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self.size_bytes:
            raise ValueError(f"{size_bytes} bytes do not fit a device buffer of {self.size_bytes}")


def _gpu(index: int) -> Gpu:
    device = _handle(index)
    name = ctypes.create_string_buffer(256)
    memory = ctypes.c_size_t()
    _call("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
    _call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    capability = f"{_attribute(device, _CAPABILITY_MAJOR)}.{_attribute(device, _CAPABILITY_MINOR)}"
    return Gpu(index, name.value.decode(errors="replace"), capability, memory.value)


def _handle(index: int) -> ctypes.c_int:
    device = ctypes.c_int()
    _call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
    return device


def _attribute(device: ctypes.c_int, attribute: int) -> int:
    value = ctypes.c_int()
    _call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), device)
    return value.value


def _call(function: str, *arguments: Any) -> None:
    status = getattr(_library(), function)(*arguments)
    if status:
        raise StageError(f"the CUDA driver's {function} failed: {_text(status)}")


def _text(status: int) -> str:
    name = ctypes.c_char_p()
    if _library().cuGetErrorName(status, ctypes.byref(name)) or name.value is None:
        return f"error {status}"
    return f"{name.value.decode()}, error {status}"


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(_LIBRARY)
