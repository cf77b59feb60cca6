"""Arrays in GPU memory: a caller's inputs, and new outputs."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from buildsys.backends.interface import Allocate, DeviceTensor
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import BIT_DTYPES, ML_DTYPES, Array, Tensor

if TYPE_CHECKING:
    from buildsys.backends.cuda.device import Buffer, Device

CUPY, TORCH = "cupy", "torch"
_INTERFACE = "__cuda_array_interface__"
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # device types of DLPack
_LEGACY_STREAM = 1  # DLPack's number of the default stream
_ONNX_NAMES = {name: dtype for dtype, name in ML_DTYPES.items()}
_SPARE_BYTES = 64 << 20


class SpareMemory:
    """Freed memory for later arrays: an allocation takes as long as some networks."""

    def __init__(self) -> None:
        self._lock = RLock()  # collected garbage may free an array while another one is made
        self._buffers: dict[int, list[Buffer]] = {}
        self._kept_bytes = 0

    def take(self, size_bytes: int) -> Buffer | None:
        """Take memory of exactly this size, if there is any."""
        with self._lock:
            buffers = self._buffers.get(size_bytes)
            if not buffers:
                return None
            self._kept_bytes -= size_bytes
            return buffers.pop()

    def keep(self, buffer: Buffer) -> bool:
        """Take memory; return False beyond the limit."""
        with self._lock:
            if self._kept_bytes + buffer.size_bytes > _SPARE_BYTES:
                return False
            self._kept_bytes += buffer.size_bytes
            self._buffers.setdefault(buffer.size_bytes, []).append(buffer)
            return True


class DeviceArray:
    """A contiguous array in GPU memory, freed with its last reference.

    Any library with the CUDA array interface takes it without a copy, e.g.
    ``torch.as_tensor(array, device="cuda")`` or ``cupy.asarray(array)``.
    """

    _spare = SpareMemory()
    _is_shared = False  # others may still use the memory when this array is gone, on any stream

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        """Allocate memory on the first GPU; ``dtype`` has ONNX's name.

        Raises: StageError: too little memory is left.
        """
        self.dtype = dtype
        self.shape = shape
        self._stored = _storage(dtype)
        self.nbytes = math.prod(shape) * self._stored.itemsize
        self._gpu = _shared_gpu()
        self._buffer = self._spare.take(self.nbytes) or self._allocate()
        # for inferences, which are not other users
        self.location = self._buffer.address
        self.tensor = DeviceTensor(self.location, shape, dtype, self._buffer)

    def _allocate(self) -> Buffer:
        from buildsys.backends.cuda.device import Buffer

        with self._gpu.current():
            return Buffer(self.nbytes, self._gpu.main_stream)

    @property
    def address(self) -> int:
        """The address of the first element."""
        self._is_shared = True
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
        if self._is_shared or not self._spare.keep(self._buffer):
            try:
                with self._gpu.current():
                    self._buffer.release()
            except StageError:  # the GPU has failed before
                pass

    def __repr__(self) -> str:
        """Show type, shape and address."""
        return f"<DeviceArray {self.dtype}{list(self.shape)} at {self._buffer.address:#x}>"


@cache
def _storage(dtype: str) -> np.dtype[Any]:
    return np.dtype(BIT_DTYPES.get(dtype, dtype))


@cache
def _shared_gpu() -> Device:
    """Open the first GPU; like arrays, it may outlive all engines."""
    from buildsys.backends.cuda.device import Device

    return Device(0)


def is_on_gpu(value: object) -> bool:
    """Check for an array in GPU memory."""
    kind = type(value)
    if kind is np.ndarray:
        return False
    if kind is DeviceArray:
        return True
    with suppress(Exception):  # libraries raise their own errors for unusual devices
        if hasattr(value, "__dlpack_device__"):
            return value.__dlpack_device__()[0] in (CUDA, CUDA_MANAGED)
    return hasattr(value, _INTERFACE)


class Memory(NamedTuple):
    """The memory of an array in another library."""

    address: int
    shape: tuple[int, ...]
    dtype: str  # with ONNX's name
    is_contiguous: bool
    owner: object


def read_memory(value: Any, stream: int) -> Memory:
    """Describe the GPU memory of an array, complete for work on ``stream``.

    Raises: StageError: the array is on another GPU or cannot be shared.
    """
    if isinstance(value, DeviceArray):
        return Memory(value.location, value.shape, value.dtype, is_contiguous=True, owner=value)
    if hasattr(value, "__dlpack__"):
        index = value.__dlpack_device__()[1]
        if index != 0:
            raise StageError(f"is on GPU {index}, and the engine on GPU 0", "copy it there")
        value.__dlpack__(stream=stream or _LEGACY_STREAM)  # lets the stream wait for the array
    torch = sys.modules.get(TORCH)
    if torch is not None and isinstance(value, torch.Tensor):  # also types unknown to numpy
        name = str(value.dtype).removeprefix("torch.")
        dtype_name, address = _ONNX_NAMES.get(name, name), value.data_ptr()
        return Memory(address, tuple(value.shape), dtype_name, value.is_contiguous(), value)
    facts = getattr(value, _INTERFACE, None)
    if facts is None:
        problem = f"is an array of {library_of(type(value))} without the CUDA array interface"
        raise StageError(problem, "pass an array of torch or cupy")
    dtype = np.dtype(facts["typestr"])
    strides = facts.get("strides")
    if facts.get("stream"):  # the work that fills it must end
        from buildsys.backends.cuda.device import Stream

        with _shared_gpu().current():
            Stream(facts["stream"]).synchronize()
    is_contiguous = (
        not strides
        or (
            np.lib.stride_tricks.as_strided(np.empty(0, dtype), facts["shape"], strides)
        ).flags.c_contiguous
    )
    return Memory(facts["data"][0], tuple(facts["shape"]), dtype.name, is_contiguous, value)


def library_of(kind: type) -> str:
    """Name the library of a type of arrays."""
    return kind.__module__.partition(".")[0]


def allocator_of(kind: type) -> Allocate:
    """Choose how new outputs are made: by a type's library, else as ``DeviceArray``."""
    library = library_of(kind)
    if library == TORCH:
        return _new_torch_tensor
    return _new_cupy_array if library == CUPY else new_device_array


def keep_from_reuse(arrays: Iterable[object]) -> None:
    """Never use the memory of arrays again, as an inference may outlive them."""
    for array in arrays:
        if isinstance(array, DeviceArray):
            array._is_shared = True


def allocator_from(arrays: Mapping[str, Any], stream: int) -> Allocate:
    """Use a caller's arrays in place of new ones."""

    def allocate(name: str, dtype: str, shape: tuple[int, ...]) -> DeviceTensor:
        array = arrays[name]
        if type(array) is DeviceArray and (array.dtype, array.shape) == (dtype, shape):
            return DeviceTensor(array.location, shape, dtype, array)
        if not is_on_gpu(array):
            problem = f"out has an array in host memory for {name}"
            raise StageError(problem, "pass arrays in GPU memory, or leave out `out`")
        memory = read_memory(array, stream)
        if (memory.dtype, memory.shape) != (dtype, shape) or not memory.is_contiguous:
            dense = "" if memory.is_contiguous else " that is not contiguous"
            description = f"an array of {memory.dtype}{list(memory.shape)}{dense}"
            raise StageError(
                f"out has {description} for {name}, which is {dtype}{list(shape)}",
                "pass an array of the output's shape and dtype",
            )
        return DeviceTensor(memory.address, shape, dtype, array)

    return allocate


def _new_torch_tensor(
    name: str, dtype: str, shape: tuple[int, ...]  # noqa: ARG001
) -> DeviceTensor:  # fmt: skip
    torch = sys.modules[TORCH]
    array = torch.empty(shape, dtype=getattr(torch, ML_DTYPES.get(dtype, dtype)), device="cuda:0")
    return DeviceTensor(array.data_ptr(), shape, dtype, array)


def _new_cupy_array(name: str, dtype: str, shape: tuple[int, ...]) -> DeviceTensor:
    if dtype in BIT_DTYPES:
        return new_device_array(name, dtype, shape)
    cupy = sys.modules[CUPY]
    with cupy.cuda.Device(0):
        array = cupy.empty(shape, dtype)
    return DeviceTensor(array.data.ptr, shape, dtype, array)


def new_device_array(
    name: str, dtype: str, shape: tuple[int, ...]  # noqa: ARG001
) -> DeviceTensor:  # fmt: skip
    """Allocate a ``DeviceArray``."""
    array = DeviceArray(dtype, shape)
    return DeviceTensor(array.location, shape, dtype, array)


def stream_handle(stream: Any) -> int:
    """Get the number of a CUDA stream.

    ``stream`` is a number, or an object of torch, cupy or cuda-python.
    Raises: StageError: it is none of these.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for attribute in ("cuda_stream", "ptr"):  # torch's name, cupy's name
        if isinstance(getattr(stream, attribute, None), int):
            return int(getattr(stream, attribute))
    problem = f"{stream!r} is not a CUDA stream"
    raise StageError(problem, "pass a stream of torch or cupy, or its number")
