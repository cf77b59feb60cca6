"""Memory layouts of an engine's inputs and outputs.

Source: TensorRT developer guide, "I/O Formats": channels in blocks (CHW4: [N, C/4, H, W, 4]) or
last (HWC8: [N, H, W, C up to a multiple of 8]), padded with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from buildsys.backends.cuda_device import Buffer, Device
from buildsys.backends.interface import Port
from buildsys.backends.tensorrt.library import DTYPES, FORMATS, TensorRTLibrary
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Array, Tensor, tensor_of

LINEAR = "linear"
_LAYOUTS = {  # multiple of the channels, channels in blocks or last, dimensions after the channels
    "chw2": (2, True, 2), "chw4": (4, True, 2), "chw16": (16, True, 2), "chw32": (32, True, 2),
    "cdhw32": (32, True, 3), "hwc": (1, False, 2), "hwc8": (8, False, 2), "hwc16": (16, False, 2),
    "dhwc": (1, False, 3), "dhwc8": (8, False, 3),
}  # fmt: skip
_PACKED = ("int4", "float4e2m1")  # two elements share a byte on the device


def packed(array: Array, layout: str) -> Array:
    """Pack an array as a layout stores it."""
    if layout == LINEAR:
        return array
    shape, (axis, blocks, size) = array.shape, _blocks(array.shape, layout)
    padding = [(0, 0)] * len(shape)
    padding[axis] = (0, blocks * size - shape[axis])
    split = np.pad(array, padding).reshape(*shape[:axis], blocks, size, *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(split, axis + 1, -1))


def packed_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape of ``packed`` for an array of a shape."""
    if layout == LINEAR:
        return shape
    axis, blocks, size = _blocks(shape, layout)
    return (*shape[:axis], blocks, *shape[axis + 1 :], size)


def unpacked(memory: Array, layout: str, shape: tuple[int, ...]) -> Array:
    """Unpack an array of a shape from memory in a layout."""
    if layout == LINEAR:
        return memory
    axis, blocks, size = _blocks(shape, layout)
    split = np.moveaxis(memory, -1, axis + 1)
    filled = split.reshape(*shape[:axis], blocks * size, *shape[axis + 1 :])
    return np.ascontiguousarray(np.take(filled, range(shape[axis]), axis))


def _blocks(shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """Return the channels' axis, their blocks, and the size of a block.

    A layout with channels last has one block.
    """
    multiple, is_blocked, spatial = _LAYOUTS.get(name, (1, False, len(shape)))
    axis = len(shape) - 1 - spatial
    if axis < 0:
        text = f"a tensor of shape {list(shape)} cannot have the format {name} here"
        raise StageError(text, "choose another format under io")
    blocks = -(-shape[axis] // multiple)
    return (axis, blocks, multiple) if is_blocked else (axis, 1, blocks * multiple)


def _stored_type(name: str, dtype: str) -> tuple[str, np.dtype[np.generic]]:
    if dtype in _PACKED:
        text = f"{name} is a tensor of {dtype}, which cannot be an input or output here"
        raise StageError(text, "cast it in the network")
    return dtype, np.dtype(BIT_DTYPES.get(dtype, dtype))


@dataclass(frozen=True)
class EngineTensors:
    """The inputs and outputs of an engine, which they do not keep in memory."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, tuple[str, np.dtype[np.generic]]]  # and of its storage
    shapes: Mapping[str, tuple[int, ...]]  # -1 for a dynamic size
    layouts: Mapping[str, str]
    on_host: frozenset[str]  # inputs whose values decide shapes

    @classmethod
    def of(cls, library: TensorRTLibrary, engine: Any) -> EngineTensors:
        """Read the facts of an engine."""
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        is_input = library.trt.TensorIOMode.INPUT
        inputs = tuple(name for name in names if engine.get_tensor_mode(name) == is_input)
        dtypes, formats = DTYPES.words(library), FORMATS.words(library)
        layouts = {name: formats.get(engine.get_tensor_format(name), LINEAR) for name in names}
        on_host = library.trt.TensorLocation.HOST
        return cls(
            inputs=inputs,
            outputs=tuple(name for name in names if name not in inputs),
            types={n: _stored_type(n, dtypes[engine.get_tensor_dtype(n)]) for n in names},
            shapes={name: tuple(engine.get_tensor_shape(name)) for name in names},
            layouts=layouts,
            on_host=frozenset(n for n in inputs if engine.get_tensor_location(n) == on_host),
        )

    def port(self, name: str) -> Port:
        """Return an input or output as others see it."""
        return Port(name, self.types[name][0], self.shapes[name])

    def require(self, inputs: Mapping[str, object]) -> tuple[str, ...]:
        """Return the names of the inputs."""
        if missing := [name for name in self.inputs if name not in inputs]:
            problem = f"the engine's input {', '.join(missing)} is not given"
            raise StageError(problem, "give every input of the engine")
        return self.inputs

    def check_linear(self) -> None:
        """Check that arrays of other libraries can be passed: they are linear."""
        for name, layout in self.layouts.items():
            if layout != LINEAR:
                problem = f"{name} is stored as {layout}, unlike arrays of other libraries"
                raise StageError(problem, "pass arrays in host memory, or build without `io`")

    def converted(self, name: str, value: Tensor) -> Tensor:
        """Return an input in the engine's type."""
        dtype = self.types[name][0]
        if value.dtype == dtype:
            return value
        # TensorRT has no float64, and 8.6 no int64
        numbers = value.values()
        converted = tensor_of(numbers, dtype)
        if numbers.dtype.kind in "iu" and not np.array_equal(converted.array, numbers):
            raise StageError(
                f"the input {name} has values beyond {dtype}, the engine's type for {value.dtype}",
                "use smaller numbers, or build with a later TensorRT",
            )
        return converted

    def packed(self, name: str, value: Tensor) -> Array:
        """Pack an input as the engine stores it."""
        return np.asarray(packed(value.array, self.layouts[name]), order="C")

    def unpacked(self, name: str, stored: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Unpack an output of a shape from memory of the engine."""
        return Tensor(unpacked(stored.array, self.layouts[name], shape), stored.dtype)


@dataclass(eq=False)
class EngineOutput:
    """An output's memory and shape."""

    buffer: Buffer
    shape: tuple[int, ...] = ()
    failure: StageError | None = None  # a request for more memory failed


class ValueShapedOutput(EngineOutput):
    """The memory and shape of an output of value-dependent shape.

    TensorRT requests its memory while it runs.
    Source: TensorRT developer guide, "Dynamically Shaped Output".
    """

    def __init__(self, library: TensorRTLibrary, device: Device, reserved_bytes: int) -> None:
        """Reserve some memory; ``allocator`` must outlive the context."""
        super().__init__(device.allocate(reserved_bytes))
        self._device = device
        output = self

        class Allocator(library.trt.IOutputAllocator):  # type: ignore[misc,name-defined]
            def reallocate_output(self, name: str, memory: Any, size: int, *others: Any) -> int:
                return output.address_of(size)

            reallocate_output_async = reallocate_output

            def notify_shape(self, name: str, shape: Any) -> None:
                output.shape = tuple(shape)

        self.allocator = Allocator()

    def address_of(self, size_bytes: int) -> int:
        """Return the address of enough memory, or 0; never raise into C++."""
        if size_bytes > self.buffer.size_bytes:
            try:
                with self._device.current():
                    larger = self._device.allocate(size_bytes)
                    self._device.free(self.buffer)
            except StageError as failure:
                self.failure = failure
                return 0
            self.buffer = larger
        return self.buffer.address
