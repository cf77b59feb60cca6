"""Arrays of numpy and other libraries as inputs and outputs.

Arrays in host memory are taken through DLPack, without a copy. Results are arrays of the inputs'
library. No library but numpy is imported: a caller with an array of another one has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from buildsys.backends.interface import DeviceTensor, Port
from buildsys.deploy.device_arrays import (
    CPU,
    CUDA_HOST,
    TORCH,
    DeviceArray,
    is_on_gpu,
    library_of,
    read_memory,
)
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import BIT_DTYPES, ML_DTYPES, Tensor, tensor_of

NUMPY = "numpy"
_TORCH_BITS = {f"torch.{name}": dtype for dtype, name in ML_DTYPES.items() if "int" not in dtype}
_SIGNED = {"uint8": "uint8", "uint16": "int16"}  # torch's numpy bridge has no uint16 before 2.3


class InputReader:
    """Checks of the arrays for one input, and their conversion."""

    def __init__(self, engine: str, port: Port, ranges: Sequence[Any] = ()) -> None:
        """Read arrays for ``port``; ``engine`` is its name for messages.

        ``ranges`` has the verified sizes of each axis: one, or the smallest and the largest.
        """
        self.port = port
        self._shown = f"the input {port.name} of {engine}"
        is_native = port.dtype not in BIT_DTYPES and port.dtype != "string"
        self._dtype = np.dtype(port.dtype) if is_native else None
        self._rank = len(port.shape)
        self._last_shape: tuple[int, ...] | None = None  # a shape that fits
        self._fixed = [
            (axis, size)
            for axis, size in enumerate(port.shape)
            if isinstance(size, int) and size >= 0
        ]
        self._ranges = [
            (axis, int(span[0]), int(span[1]))
            for axis, span in enumerate(ranges[: self._rank])
            if isinstance(span, list)
        ]

    def read(self, value: Any) -> Tensor:
        """Read an array in host memory.

        It is only copied if its type has to be converted.
        Raises: StageError: it has another type or shape, or is no array in host memory.
        """
        dtype = self._dtype  # numpy takes None for float64
        if dtype is not None and type(value) is np.ndarray and value.dtype == dtype:
            tensor = Tensor(value, self.port.dtype)
        else:
            tensor = self._fitting(self._host_tensor(value), library_of(type(value)))
        self._check_shape(tensor.array.shape)
        return tensor

    def read_on_gpu(self, value: Any, stream: int) -> Tensor | DeviceTensor:
        """Read an array where it is, in GPU or host memory.

        Work on ``stream`` finds it complete.
        Raises: StageError: it does not fit, or is not contiguous, or on another GPU.
        """
        if (
            type(value) is DeviceArray
            and value.dtype == self.port.dtype
            and value.shape == self._last_shape
        ):
            return DeviceTensor(value.location, value.shape, value.dtype, value)
        if not is_on_gpu(value):
            return self.read(value)
        try:
            memory = read_memory(value, stream)
        except StageError as error:
            raise StageError(f"{self._shown} {error.problem}", error.hint) from error
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise self._unreadable(error) from error
        if memory.dtype != self.port.dtype:
            problem = f"{self._shown} is {memory.dtype}, and the engine takes {self.port.dtype}"
            raise StageError(problem, "convert it on the GPU")
        self._check_shape(memory.shape)
        if not memory.is_contiguous:
            problem = f"{self._shown} is not contiguous in GPU memory"
            raise StageError(problem, "make it contiguous, e.g. with torch's .contiguous()")
        return DeviceTensor(memory.address, memory.shape, memory.dtype, memory.owner)

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if shape == self._last_shape:
            return
        if len(shape) != self._rank or any(shape[axis] != size for axis, size in self._fixed):
            problem = f"{self._shown} has the shape {list(shape)}"
            raise StageError(
                f"{problem}, and the engine takes {format_shape(self.port)}",
                "convert the array first",
            )
        for axis, low, high in self._ranges:
            if not low <= shape[axis] <= high:
                name = self.port.shape[axis]
                named = f"dims.{name}" if isinstance(name, str) else "dims of the manifest"
                raise StageError(
                    f"{self._shown} has the shape {list(shape)}, and the engine was verified for"
                    f" sizes of axis {axis} from {low} to {high}",
                    f"widen {named} and build it again",
                )
        self._last_shape = shape

    def _unreadable(self, error: Exception) -> StageError:
        problem = f"{self._shown} cannot be read: {' '.join(str(error).split())}"
        return StageError(problem, "pass a contiguous array of numpy, torch or cupy")

    def _host_tensor(self, value: Any) -> Tensor:
        if isinstance(value, np.ma.MaskedArray):
            raise StageError(f"{self._shown} is a masked array", "pass it with .filled(value)")
        if isinstance(value, np.ndarray | np.generic):
            if value.dtype.kind == "O" and not all(isinstance(x, str | bytes) for x in value.flat):
                problem = f"{self._shown} is an array of Python objects"
                raise StageError(problem, "convert it to numbers or strings")
            if not value.dtype.isnative:
                problem = f"{self._shown} has the byte order of another machine ({value.dtype.str})"
                hint = f"convert it, e.g. {self.port.name}.astype({self.port.dtype!r})"
                raise StageError(problem, hint)
            return tensor_of(value)
        if is_on_gpu(value):
            problem = f"{self._shown} is in GPU memory, and this engine takes arrays in host memory"
            raise StageError(problem, "copy it to the host first")
        if not hasattr(value, "__dlpack_device__"):
            problem = (
                f"{self._shown} is a value of type {type(value).__name__}, which is not an array"
            )
            raise StageError(problem, "pass an array of numpy, torch or cupy")
        if getattr(value, "requires_grad", False):
            raise StageError(f"{self._shown} requires gradients", "pass it with .detach()")
        try:
            if value.__dlpack_device__()[0] not in (CPU, CUDA_HOST):
                problem = f"{self._shown} is on a device that this engine does not run on"
                raise StageError(problem, "copy it to host memory first")
            dtype = _TORCH_BITS.get(str(getattr(value, "dtype", "")))
            if dtype is None:
                return tensor_of(np.from_dlpack(value))
            stored = BIT_DTYPES[dtype]
            signed = value.view(getattr(sys.modules[TORCH], _SIGNED[stored]))
            return Tensor(np.from_dlpack(signed).view(stored), dtype)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise self._unreadable(error) from error

    def _fitting(self, tensor: Tensor, library: str) -> Tensor:
        """Convert integers to the engine's type; refuse other types."""
        dtype = self.port.dtype
        if tensor.dtype == dtype:
            return tensor
        # TensorRT 8.6 has no int64: its engines of such graphs take int32
        if (tensor.dtype, dtype) == ("int64", "int32"):
            values = tensor.array.astype(np.int32)
            if np.array_equal(values, tensor.array):
                return Tensor(values, dtype)
            raise StageError(
                f"{self._shown} has values beyond int32, the engine's type", "pass int32 values"
            )
        method = f"to(torch.{dtype})" if library == TORCH else f"astype({dtype!r})"
        hint = f"convert it, e.g. {self.port.name}.{method}"
        if dtype in BIT_DTYPES:
            hint = f"pass it as ml_dtypes.{ML_DTYPES[dtype]}"
            hint += f" or torch.{ML_DTYPES[dtype]}" if "int" not in dtype else ""
        elif dtype == "string":
            hint = "pass an array of strings"
        raise StageError(f"{self._shown} is {tensor.dtype}, and the engine takes {dtype}", hint)


def as_array(tensor: Tensor, library: str) -> Any:
    """Convert a result to an array of torch or numpy, without a copy.

    Raises: StageError: numpy has no such type, and ``ml_dtypes`` is not installed.
    """
    if library != TORCH or tensor.dtype == "string":
        return tensor.typed()
    torch = sys.modules[TORCH]
    if tensor.dtype not in BIT_DTYPES:
        return torch.from_numpy(tensor.array)
    if "int" in tensor.dtype:
        return tensor.typed()
    signed = torch.from_numpy(tensor.array.view(_SIGNED[BIT_DTYPES[tensor.dtype]]))
    return signed.view(getattr(torch, ML_DTYPES[tensor.dtype]))


def format_shape(port: Port) -> str:
    """Format the shape of a port, ``[batch, 3, ?, ?]``."""
    return f"[{', '.join('?' if size in (None, -1) else str(size) for size in port.shape)}]"
