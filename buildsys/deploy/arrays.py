"""Arrays of numpy, torch, cupy and other libraries as inputs and outputs.

Arrays are taken through DLPack or the CUDA array interface, without a copy. Results are arrays of
the inputs' library. No library but numpy is imported: a caller with an array of another one has
imported it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from buildsys.backends.interface import Allocate, DeviceTensor, Port
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import BIT_DTYPES, ML_DTYPES, Array, Tensor, tensor_of

if TYPE_CHECKING:
    from buildsys.backends.cuda_device import Buffer, Device

NUMPY, TORCH, CUPY = "numpy", "torch", "cupy"
_INTERFACE = "__cuda_array_interface__"
_GPU_DEVICES = (2, 13)  # of DLPack: CUDA, CUDA managed
_LEGACY_STREAM = 1  # DLPack's number of the default stream
_ONNX_NAMES = {name: dtype for dtype, name in ML_DTYPES.items()}
_SIGNED = {"uint8": "uint8", "uint16": "int16"}  # torch's numpy bridge has no uint16 before 2.3
_SPARE_BYTES = 64 << 20
_IMAGE_AXES = 3  # height, width, channels
_IMAGE_HINT = "pass pixels from 0 to 255, such as numpy.asarray(image.convert({!r})) of Pillow"
_UNREADABLE = (BufferError, RuntimeError, TypeError, ValueError)  # raised by DLPack


class InputReader:
    """Checks of the arrays for one input, and their conversion."""

    def __init__(
        self, engine: str, port: Port, ranges: Sequence[Any] = (), image: object = None
    ) -> None:
        """Read arrays for ``port``; ``engine`` is its name for messages.

        ``ranges`` has the verified sizes of each axis: one, or the smallest and the largest, and
        perhaps a name and the step between them; axes with equal names have equal sizes. With
        ``image``, its description, an input takes raw images, also one without a batch axis.
        """
        mode = "L" if isinstance(image, Mapping) and image.get("color") == "gray" else "RGB"
        self._image_hint = _IMAGE_HINT.format(mode) if image else ""
        self.port = port
        self.names = [size if isinstance(size, str) else "" for size in port.shape]
        self._title = f"the input {port.name} of {engine}"
        is_native = port.dtype not in BIT_DTYPES and port.dtype != "string"
        self._dtype = np.dtype(port.dtype) if is_native else None
        self._limits: list[tuple[float, float, int]] = [
            (size, size, 1) if isinstance(size, int) and size >= 0 else (0, math.inf, 1)
            for size in port.shape
        ]
        for axis, span in enumerate(ranges[: len(port.shape)]):
            if isinstance(span, list):
                step = int(span[3]) if span[3:] else 1
                self._limits[axis] = int(span[0]), int(span[1]), step
                if span[2:]:
                    self.names[axis] = str(span[2])

    def read(self, value: Any) -> Tensor:
        """Read an array in host memory.

        It is only copied if its type has to be converted.
        Raises: StageError: it has another type or shape, or is no array in host memory.
        """
        dtype = self._dtype  # numpy takes None for float64
        if dtype is not None and type(value) is np.ndarray and value.dtype == dtype:
            tensor = Tensor(value, self.port.dtype)
        else:
            tensor = self._fitting(self._host_tensor(value))
        if self._image_hint and tensor.array.ndim == len(self.port.shape) - 1 == _IMAGE_AXES:
            tensor = Tensor(tensor.array[np.newaxis], tensor.dtype)
        self._check_shape(tensor.array.shape)
        return tensor

    def read_on_gpu(self, value: Any, stream: int) -> Tensor | DeviceTensor:
        """Read an array where it is, in GPU or host memory.

        Work on ``stream`` finds it complete.
        Raises: StageError: it does not fit, or is not contiguous, or on another GPU.
        """
        if not is_on_gpu(value):
            return self.read(value)
        try:
            tensor = read_memory(value, stream)
        except StageError as error:
            raise StageError(f"{self._title} {error.problem}", error.hint) from error
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        if tensor.dtype != self.port.dtype:
            raise self._wrong_type(tensor.dtype, "convert it on the GPU")
        self._check_shape(tensor.shape)
        return tensor

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        limits = self._limits
        if len(shape) == len(limits) and all(
            low <= size <= high and not (size - low) % step
            for size, (low, high, step) in zip(shape, limits, strict=True)
        ):
            return
        sizes = []
        for name, size, (low, high, step) in zip(self.names, self.port.shape, limits, strict=True):
            is_free, title = high == math.inf, name or ("?" if size in (None, -1) else str(size))
            steps = f" in steps of {step}" if step > 1 else ""
            sizes.append(
                title if is_free or low == high else f"{title} from {low} to {high}{steps}"
            )
        problem = f"{self._title} has the shape {list(shape)}, and the engine takes"
        hint = "convert the array, or widen `dims` in the manifest and build it again"
        if self._image_hint and shape[-1:] != tuple(self.port.shape[-1:]):
            hint = self._image_hint
        raise StageError(f"{problem} [{', '.join(sizes)}]", hint)

    def _unreadable(self, error: object) -> StageError:
        problem = f"{self._title} cannot be read: {' '.join(str(error).split())}"
        hint = self._image_hint or "pass a contiguous array of numpy, torch or cupy"
        return StageError(problem, hint)

    def _wrong_type(self, dtype: str, hint: str) -> StageError:
        problem = f"{self._title} is {dtype}, and the engine takes {self.port.dtype}"
        return StageError(problem, self._image_hint or hint)

    def _host_tensor(self, value: Any) -> Tensor:
        if isinstance(value, np.ndarray | np.generic):
            if isinstance(value, np.ma.MaskedArray) or not value.dtype.isnative:
                hint = f"pass plain numbers, e.g. {self.port.name}.astype({self.port.dtype!r})"
                problem = f"{self._title} has a mask or the byte order of another machine"
                raise StageError(problem, hint)
            objects = value.flat if value.dtype.kind == "O" else ()
            if not all(isinstance(item, str | bytes) for item in objects):
                raise self._unreadable("it is an array of Python objects")
            return tensor_of(value)
        if is_on_gpu(value):
            problem = f"{self._title} is in GPU memory, and this engine takes arrays in host memory"
            raise StageError(problem, "copy it to the host first")
        if not hasattr(value, "__dlpack_device__"):
            raise self._unreadable(f"it is a value of type {type(value).__name__}")
        try:
            dtype = _ONNX_NAMES.get(str(getattr(value, "dtype", "")).removeprefix("torch."))
            if dtype is None:
                return tensor_of(np.from_dlpack(value))
            stored = BIT_DTYPES[dtype]
            signed = value.view(getattr(sys.modules[TORCH], _SIGNED[stored]))
            return Tensor(np.from_dlpack(signed).view(stored), dtype)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def _fitting(self, tensor: Tensor) -> Tensor:
        """Convert integers to the engine's type; refuse other types."""
        dtype = self.port.dtype
        if tensor.dtype == dtype:
            return tensor
        # TensorRT 8.6 has no int64: its engines of such graphs take int32
        if (tensor.dtype, dtype) == ("int64", "int32"):
            values = tensor.array.astype(np.int32)
            if np.array_equal(values, tensor.array):
                return Tensor(values, dtype)
            problem = f"{self._title} has values beyond int32, the engine's type"
            raise StageError(problem, "pass int32 values")
        name = ML_DTYPES.get(dtype, dtype)
        hint = f"convert it to {'ml_dtypes or torch.' if dtype in BIT_DTYPES else ''}{name}"
        raise self._wrong_type(tensor.dtype, hint)


class _SpareMemory:
    """Freed memory for later arrays: an allocation takes as long as some networks."""

    def __init__(self) -> None:
        self._lock = RLock()  # collected garbage may free an array while another one is made
        self._buffers: dict[int, list[Buffer]] = {}
        self._bytes = 0

    def take(self, size_bytes: int) -> Buffer | None:
        with self._lock:
            if not (buffers := self._buffers.get(size_bytes)):
                return None
            self._bytes -= size_bytes
            # the last one: calls then find the same addresses, which CUDA graphs need
            return buffers.pop()

    def keep(self, buffer: Buffer) -> list[Buffer]:
        """Take memory; beyond the limit return all of it."""
        with self._lock:
            self._buffers.setdefault(buffer.size_bytes, []).append(buffer)
            self._bytes += buffer.size_bytes
            if self._bytes <= _SPARE_BYTES:
                return []
            surplus = [kept for buffers in self._buffers.values() for kept in buffers]
            self._buffers.clear()
            self._bytes = 0
            return surplus


class DeviceArray:
    """A contiguous array in GPU memory, freed with its last reference.

    Any library with the CUDA array interface takes it without a copy, e.g.
    ``torch.as_tensor(array, device="cuda")`` or ``cupy.asarray(array)``.
    """

    _spare = _SpareMemory()
    is_shared = False  # others may still use the memory when this array is gone, on any stream

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        """Allocate memory on the first GPU; ``dtype`` has ONNX's name.

        Raises: StageError: too little memory is left.
        """
        self.dtype = dtype
        self.shape = shape
        self._stored = np.dtype(BIT_DTYPES.get(dtype, dtype))
        self.nbytes = math.prod(shape) * self._stored.itemsize
        self._gpu = _shared_gpu()
        buffer = self._spare.take(self.nbytes)
        if buffer is None:
            from buildsys.backends.cuda_device import Buffer

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
        """Copy the array to host memory. Types unknown to numpy are those of ``ml_dtypes``."""
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
        if surplus := [self._buffer] if self.is_shared else self._spare.keep(self._buffer):
            with suppress(StageError), self._gpu.current():  # the GPU has failed before
                for buffer in surplus:
                    buffer.release()

    def __repr__(self) -> str:
        """Show type, shape and address."""
        return f"<DeviceArray {self.dtype}{list(self.shape)} at {self.location:#x}>"


@cache
def _shared_gpu() -> Device:
    """Open the first GPU; like arrays, it may outlive all engines."""
    from buildsys.backends.cuda_device import Device

    return Device(0)


def as_array(tensor: Tensor, library: str) -> Any:
    """Convert a result to an array of torch or numpy, without a copy.

    Raises: StageError: numpy has no such type, and ``ml_dtypes`` is not installed.
    """
    has_bits = tensor.dtype in BIT_DTYPES
    if library != TORCH or tensor.dtype == "string" or (has_bits and "int" in tensor.dtype):
        return tensor.typed()
    torch = sys.modules[TORCH]
    if not has_bits:
        return torch.from_numpy(tensor.array)
    signed = torch.from_numpy(tensor.array.view(_SIGNED[BIT_DTYPES[tensor.dtype]]))
    return signed.view(getattr(torch, ML_DTYPES[tensor.dtype]))


def is_on_gpu(value: object) -> bool:
    """Check for an array in GPU memory."""
    if isinstance(value, np.ndarray | DeviceArray):
        return isinstance(value, DeviceArray)
    with suppress(Exception):  # libraries raise their own errors for unusual devices
        if hasattr(value, "__dlpack_device__"):
            return value.__dlpack_device__()[0] in _GPU_DEVICES
    return hasattr(value, _INTERFACE)


def read_memory(value: Any, stream: int) -> DeviceTensor:
    """Read an array in GPU memory, complete for work on ``stream``.

    Raises: StageError: the array is on another GPU, not contiguous, or cannot be shared.
    """
    if isinstance(value, DeviceArray):
        return DeviceTensor(value.location, value.shape, value.dtype, value)
    if hasattr(value, "__dlpack__"):
        if index := value.__dlpack_device__()[1]:
            raise StageError(f"is on GPU {index}, and the engine on GPU 0", "copy it there")
        value.__dlpack__(stream=stream or _LEGACY_STREAM)  # lets the stream wait for the array
    torch, facts = sys.modules.get(TORCH), getattr(value, _INTERFACE, None)
    if torch is not None and isinstance(value, torch.Tensor):  # also types unknown to numpy
        name, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
        dtype, address = _ONNX_NAMES.get(name, name), value.data_ptr()
        is_dense = value.is_contiguous()
    elif facts is None:
        problem = f"is an array of {library_of(type(value))} without the CUDA array interface"
        raise StageError(problem, "pass an array of torch or cupy")
    else:
        if facts.get("stream"):  # the work that fills it must end
            from buildsys.backends.cuda_device import Stream

            with _shared_gpu().current():
                Stream(facts["stream"]).synchronize()
        dtype, shape = np.dtype(facts["typestr"]).name, tuple(facts["shape"])
        address, is_dense = facts["data"][0], facts.get("strides") is None
    if not is_dense:
        hint = "make it contiguous, e.g. with torch's .contiguous()"
        raise StageError("is not contiguous in GPU memory", hint)
    return DeviceTensor(address, shape, dtype, value)


def library_of(kind: type) -> str:
    """Name the library of a type of arrays."""
    return kind.__module__.partition(".")[0]


def allocator_of(kind: type) -> Allocate:
    """Choose how new outputs are made: by a type's library, else as ``DeviceArray``."""
    library = library_of(kind)

    def allocate(_: str, dtype: str, shape: tuple[int, ...]) -> DeviceTensor:
        if library == TORCH:
            torch = sys.modules[TORCH]
            kind = getattr(torch, ML_DTYPES.get(dtype, dtype))
            tensor = torch.empty(shape, dtype=kind, device="cuda:0")
            return DeviceTensor(tensor.data_ptr(), shape, dtype, tensor)
        if library == CUPY and dtype not in BIT_DTYPES:
            cupy = sys.modules[CUPY]
            with cupy.cuda.Device(0):
                array = cupy.empty(shape, dtype)
            return DeviceTensor(array.data.ptr, shape, dtype, array)
        own = DeviceArray(dtype, shape)
        return DeviceTensor(own.location, shape, dtype, own)

    return allocate


def allocator_from(arrays: Mapping[str, Any], stream: int) -> Allocate:
    """Use a caller's arrays in place of new ones."""

    def allocate(name: str, dtype: str, shape: tuple[int, ...]) -> DeviceTensor:
        array = arrays[name]
        if not is_on_gpu(array):
            problem = f"out has an array in host memory for {name}"
            raise StageError(problem, "pass arrays in GPU memory, or leave out `out`")
        tensor = read_memory(array, stream)
        if (tensor.dtype, tensor.shape) != (dtype, shape):
            problem = f"out has an array of {tensor.dtype}{list(tensor.shape)} for {name}"
            hint = "pass an array of the output's shape and dtype"
            raise StageError(f"{problem}, which is {dtype}{list(shape)}", hint)
        return tensor

    return allocate


def stream_handle(stream: Any) -> int:
    """Get the number of a CUDA stream, which is a number or an object of torch or cupy.

    Raises: StageError: it is none of these.
    """
    for number in (stream, getattr(stream, "cuda_stream", None), getattr(stream, "ptr", None)):
        if isinstance(number, int):  # torch's name, cupy's name
            return number
    problem = f"{stream!r} is not a CUDA stream"
    raise StageError(problem, "pass a stream of torch or cupy, or its number")
