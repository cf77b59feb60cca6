"""The tensors of an engine: memory layouts, and ranges of shapes in optimization profiles.

Source: TensorRT developer guide, "I/O Formats": channels in blocks (CHW4: [N, C/4, H, W, 4]) or
last (HWC8: [N, H, W, C up to a multiple of 8]), padded with zeros.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from buildsys.backends.cuda_device import Buffer, Device
from buildsys.backends.interface import DeviceTensor, Port
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import (
    FORMATS,
    Messages,
    TensorRTLibrary,
    dtype_words,
    find_value,
)
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Array, Tensor, tensor_of

LINEAR = "linear"
_LAYOUTS = {  # multiple of the channels, channels in blocks or last, dimensions after the channels
    "chw2": (2, True, 2), "chw4": (4, True, 2), "chw16": (16, True, 2), "chw32": (32, True, 2),
    "cdhw32": (32, True, 3), "hwc": (1, False, 2), "hwc8": (8, False, 2), "hwc16": (16, False, 2),
    "dhwc": (1, False, 3), "dhwc8": (8, False, 3),
}  # fmt: skip
_PACKED = ("int4", "float4e2m1")  # two elements share a byte on the device
Shape = tuple[int, ...]


def packed(array: Array, layout: str) -> Array:
    """Pack an array as a layout stores it."""
    if layout == LINEAR:
        return array
    shape, (axis, blocks, size) = array.shape, _blocks(array.shape, layout)
    padding = [(0, 0)] * len(shape)
    padding[axis] = (0, blocks * size - shape[axis])
    split = np.pad(array, padding).reshape(*shape[:axis], blocks, size, *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(split, axis + 1, -1))


def packed_shape(shape: Shape, layout: str) -> Shape:
    """Return the shape of ``packed`` for an array of a shape."""
    if layout == LINEAR:
        return shape
    axis, blocks, size = _blocks(shape, layout)
    return (*shape[:axis], blocks, *shape[axis + 1 :], size)


def unpacked(memory: Array, layout: str, shape: Shape) -> Array:
    """Unpack an array of a shape from memory in a layout."""
    if layout == LINEAR:
        return memory
    axis, blocks, size = _blocks(shape, layout)
    split = np.moveaxis(memory, -1, axis + 1)
    filled = split.reshape(*shape[:axis], blocks * size, *shape[axis + 1 :])
    return np.ascontiguousarray(np.take(filled, range(shape[axis]), axis))


def _blocks(shape: Shape, name: str) -> tuple[int, int, int]:
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


@dataclass(frozen=True)
class EnginePort(Port):
    """An input or output of an engine, which it does not keep in memory."""

    stored: np.dtype[np.generic]  # the type of its elements in memory
    layout: str
    is_input: bool
    on_host: bool  # an input whose values decide shapes

    def size_bytes(self, shape: Shape) -> int:
        """Compute the memory that the port takes with a shape."""
        elements = np.prod(packed_shape(shape, self.layout), dtype=np.int64)
        return int(elements) * self.stored.itemsize

    def check_linear(self) -> None:
        """Check that arrays of other libraries can be passed: they are linear."""
        if self.layout != LINEAR:
            problem = f"{self.name} is stored as {self.layout}, unlike arrays of other libraries"
            raise StageError(problem, "pass arrays in host memory, or build without `io`")

    def converted(self, value: Tensor | DeviceTensor) -> Tensor | DeviceTensor:
        """Convert an input to the engine's type; refuse one in the wrong memory."""
        if isinstance(value, DeviceTensor):
            if self.on_host:
                problem = f"the values of the input {self.name} decide shapes"
                raise StageError(problem, "pass it as an array in host memory")
            return value
        if value.dtype == self.dtype:
            return value
        # TensorRT has no float64, and 8.6 no int64
        numbers = value.values()
        converted = tensor_of(numbers, self.dtype)
        if numbers.dtype.kind in "iu" and not np.array_equal(converted.array, numbers):
            raise StageError(
                f"the input {self.name} has values beyond {self.dtype}, the engine's type for"
                f" {value.dtype}",
                "use smaller numbers, or build with a later TensorRT",
            )
        return converted


def read_ports(library: TensorRTLibrary, engine: Any) -> tuple[EnginePort, ...]:
    """Read the inputs and outputs of an engine, in the order of its network."""
    trt, dtypes = library.trt, dtype_words(library)
    formats = {find_value(library, "TensorFormat", word): word for word in FORMATS}
    tensors = []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        dtype = dtypes[engine.get_tensor_dtype(name)]
        if dtype in _PACKED:
            text = f"{name} is a tensor of {dtype}, which cannot be an input or output here"
            raise StageError(text, "cast it in the network")
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        is_on_host = engine.get_tensor_location(name) == trt.TensorLocation.HOST
        tensors.append(
            EnginePort(
                name,
                dtype,
                tuple(engine.get_tensor_shape(name)),
                stored=np.dtype(BIT_DTYPES.get(dtype, dtype)),
                layout=formats.get(engine.get_tensor_format(name), LINEAR),
                is_input=is_input,
                on_host=is_input and is_on_host,
            )
        )
    return tuple(tensors)


@dataclass(eq=False)
class EngineOutput:
    """An output's memory and shape."""

    buffer: Buffer
    shape: Shape = ()
    allocator: Any = None  # for a value-dependent shape; must outlive the context
    failure: StageError | None = None  # a request for more memory failed


def value_shaped_output(library: TensorRTLibrary, device: Device, bytes_: int) -> EngineOutput:
    """Make an output of value-dependent shape, with some memory to begin with.

    TensorRT requests its memory while it runs.
    Source: TensorRT developer guide, "Dynamically Shaped Output".
    """
    output = EngineOutput(device.allocate(bytes_))

    class Allocator(library.trt.IOutputAllocator):  # type: ignore[misc,name-defined]
        def reallocate_output(self, name: str, memory: Any, size: int, *others: Any) -> int:
            """Return the address of enough memory, or 0; never raise into C++."""
            if size > output.buffer.size_bytes:
                try:
                    with device.current():
                        larger = device.allocate(size)
                        device.free(output.buffer)
                except StageError as failure:
                    output.failure = failure
                    return 0
                output.buffer = larger
            return output.buffer.address

        reallocate_output_async = reallocate_output

        def notify_shape(self, name: str, shape: Any) -> None:
            output.shape = tuple(shape)

    output.allocator = Allocator()
    return output


# input name -> {"min": shape, "opt": shape, "max": shape}, and {"min_values": …} if its values
# decide shapes
Profile = dict[str, dict[str, Shape]]
_POINTS = ("min", "opt", "max")


def resolve_profiles(
    inputs: Mapping[str, Mapping[str, Any]],
    dims: Mapping[str, Mapping[str, Any]],
    explicit: Sequence[Mapping[str, Mapping[str, Any]]] | None,
) -> list[Profile]:
    """Make an engine's profiles: ``explicit``, or a single one from ``dims``.

    The manifest's checks have compared ``explicit`` with the inputs. Inputs without a dynamic
    dimension have no entry; a model without dynamic inputs has no profile.
    """
    shapes = {name: tensor["shape"] for name, tensor in inputs.items()}
    dynamic = {n for n, shape in shapes.items() if any(isinstance(size, str) for size in shape)}

    def span_of(name: str, ranges: Mapping[str, Any]) -> dict[str, Shape]:
        if "values" not in ranges:
            return {point: tuple(ranges[point]) for point in _POINTS}
        values = {f"{point}_values": tuple(ranges["values"][point]) for point in _POINTS}
        return {**dict.fromkeys(_POINTS, tuple(shapes.get(name, ()))), **values}

    if explicit is None:
        spans = {
            name: {
                p: [dims[size][p] if isinstance(size, str) else size for size in shapes[name]]
                for p in _POINTS
            }
            for name in shapes
            if name in dynamic
        }
        explicit = [spans] if spans else []
    profiles = [
        {
            name: span_of(name, ranges)
            for name, ranges in ranges_of.items()
            if name in dynamic or name not in inputs or "values" in ranges
        }
        for ranges_of in explicit
    ]
    return profiles if any(profiles) else []


def add_profiles(
    library: TensorRTLibrary,
    builder: Any,
    config: Any,
    profiles: Sequence[Profile],
    messages: Messages,
) -> None:
    """Add the optimization profiles; the builder compares them with the network."""
    for number, ranges in enumerate(profiles):
        profile = builder.create_optimization_profile()
        for name, span in ranges.items():
            profile.set_shape(name, span["min"], span["opt"], span["max"])
            if "min_values" in span:
                values = (span[f"{point}_values"] for point in _POINTS)
                profile.set_shape_input(name, *values)
        if not profile or config.add_optimization_profile(profile) < 0:
            reason = messages.error_text("it gives no reason")
            raise StageError(
                f"{library.title} refuses the optimization profile {number}, {ranges}: {reason}",
                "correct the ranges of dims or of the engine's profiles",
            )


def read_profiles(library: TensorRTLibrary, engine: Any, inputs: Iterable[str]) -> list[Profile]:
    """Read an engine's profiles; there is one if all shapes are fixed."""
    profiles = []
    for number in range(engine.num_optimization_profiles):
        profile: Profile = {}
        for name in inputs:
            low, usual, high = map(tuple, engine.get_tensor_profile_shape(name, number))
            span = {"min": low, "opt": usual, "max": high}
            values = version_adapter.profile_values(library, engine, name, number) or []
            points = list(zip(span, values, strict=False))
            # TensorRT 8.6 returns one value of several
            if all(len(numbers) == np.prod(span[point]) for point, numbers in points):
                span.update({f"{point}_values": numbers for point, numbers in points})
            profile[name] = span
        profiles.append(profile)
    return profiles


def choose_profile(
    profiles: Sequence[Profile], inputs: Mapping[str, Tensor | DeviceTensor], chosen: int | None
) -> int:
    """Choose the first profile that holds the inputs, or ``chosen``."""
    for number, ranges in enumerate(profiles):
        if chosen in (None, number) and _fits(ranges, inputs):
            return number
    shapes = {name: value.shape for name, value in inputs.items()}
    which = "no optimization profile" if chosen is None else f"no optimization profile {chosen}"
    existing = "; ".join(
        f"profile {number}: {name} {list(span['min'])} to {list(span['max'])}"
        for number, ranges in enumerate(profiles)
        for name, span in ranges.items()
    )
    raise StageError(f"{which} of the engine holds the shapes {shapes}", existing)


def _fits(ranges: Profile, inputs: Mapping[str, Tensor | DeviceTensor]) -> bool:
    for name, value in inputs.items():
        span = ranges[name]
        checks = [(span["min"], value.shape, span["max"])]
        if "min_values" in span and isinstance(value, Tensor):
            values = tuple(int(number) for number in np.ravel(value.array))
            checks.append((span["min_values"], values, span["max_values"]))
        for low, sizes, high in checks:
            spans = zip(low, sizes, high, strict=False)
            if len(low) != len(sizes) or not all(a <= n <= b for a, n, b in spans):
                return False
    return True
