"""``DeviceArray``: new arrays in GPU memory, for callers without torch and cupy."""

from __future__ import annotations

import math
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Array, Tensor

if TYPE_CHECKING:
    from buildsys.backends.cuda_device import Buffer, Device

_SPARE_BYTES = 64 << 20


class SpareMemory:
    """Freed memory for later arrays: an allocation takes as long as some networks."""

    def __init__(self) -> None:
        self._lock = RLock()  # collected garbage may free an array while another one is made
        self._buffers: list[Buffer] = []

    def take(self, size_bytes: int) -> Buffer | None:
        """Take memory of exactly this size, if there is any."""
        with self._lock:
            for at, buffer in enumerate(self._buffers):
                if buffer.size_bytes == size_bytes:
                    return self._buffers.pop(at)
        return None

    def keep(self, buffer: Buffer) -> bool:
        """Take memory; return False beyond the limit."""
        with self._lock:
            if sum(b.size_bytes for b in self._buffers) + buffer.size_bytes > _SPARE_BYTES:
                return False
            self._buffers.append(buffer)
            return True


class DeviceArray:
    """A contiguous array in GPU memory, freed with its last reference.

    Any library with the CUDA array interface takes it without a copy, e.g.
    ``torch.as_tensor(array, device="cuda")`` or ``cupy.asarray(array)``.
    """

    _spare = SpareMemory()
    is_shared = False  # others may still use the memory when this array is gone, on any stream

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        """Allocate memory on the first GPU; ``dtype`` has ONNX's name.

        Raises: StageError: too little memory is left.
        """
        from buildsys.backends.cuda_device import Buffer

        self.dtype = dtype
        self.shape = shape
        self._stored = np.dtype(BIT_DTYPES.get(dtype, dtype))
        self.nbytes = math.prod(shape) * self._stored.itemsize
        self._gpu = _shared_gpu()
        buffer = self._spare.take(self.nbytes)
        if buffer is None:
            with self._gpu.current():
                buffer = Buffer(self.nbytes, self._gpu.main_stream)
        self._buffer = buffer
        self.location = buffer.address  # for inferences, which are not other users

    @property
    def address(self) -> int:
        """The address of the first element."""
        self.is_shared = True
        return self.location

    @classmethod
    def from_host(cls, array: Array) -> DeviceArray:
        """Copy an array of numpy to the GPU."""
        new = cls(array.dtype.name, array.shape)
        with new._gpu.current():
            new._buffer.upload(array)
        return new

    def numpy(self) -> Array:
        """Copy the array to host memory.

        Types unknown to numpy are those of ``ml_dtypes``.
        """
        target = np.empty(self.shape, self._stored)
        with self._gpu.current():
            self._buffer.download(target)
        return Tensor(target, self.dtype).typed()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory for libraries with numba's protocol."""
        if self.dtype in BIT_DTYPES:
            raise AttributeError(f"the CUDA array interface has no {self.dtype}; use torch")
        place = {"data": (self.address, False), "shape": self.shape, "strides": None}
        return {**place, "typestr": self._stored.str, "stream": None, "version": 3}

    def __del__(self) -> None:
        """Free the memory, after all work on the GPU."""
        if not hasattr(self, "_buffer"):  # its allocation has failed
            return
        if self.is_shared or not self._spare.keep(self._buffer):
            try:
                with self._gpu.current():
                    self._buffer.release()
            except StageError:  # the GPU has failed before
                pass

    def __repr__(self) -> str:
        """Show type, shape and address."""
        return f"<DeviceArray {self.dtype}{list(self.shape)} at {self.location:#x}>"


@cache
def _shared_gpu() -> Device:
    """Open the first GPU; like arrays, it may outlive all engines."""
    from buildsys.backends.cuda_device import Device

    return Device(0)


def wait_for_stream(number: int) -> None:
    """Wait for all work on another library's stream. Raises: StageError: it failed."""
    from buildsys.backends.cuda_device import Stream

    with _shared_gpu().current():
        Stream(number).synchronize()
