"""The tensors of an engine: memory layouts, and ranges of shapes in optimization profiles.

Source: TensorRT developer guide, "I/O Formats": channels in blocks (CHW4: [N, C/4, H, W, 4]) or
last (HWC8: [N, H, W, C up to a multiple of 8]), padded with zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np

from buildsys.backends.cuda_device import Buffer, Device
from buildsys.backends.interface import DeviceTensor, Port
from buildsys.backends.tensorrt import version_adapter
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


Shape = tuple[int, ...]
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
    dynamic = {
        name: tensor["shape"]
        for name, tensor in inputs.items()
        if any(isinstance(size, str) for size in tensor["shape"])
    }
    if explicit is None:
        profile = {
            name: {
                point: tuple(dims[size][point] if isinstance(size, str) else size for size in shape)
                for point in _POINTS
            }
            for name, shape in dynamic.items()
        }
        return [profile] if profile else []
    profiles = [
        {
            name: _explicit_range(ranges, inputs.get(name, {}).get("shape", ()))
            for name, ranges in ranges_of.items()
            if name in dynamic or name not in inputs or "values" in ranges
        }
        for ranges_of in explicit
    ]
    return profiles if any(profiles) else []


def _explicit_range(ranges: Mapping[str, Any], shape: Sequence[Any]) -> dict[str, Shape]:
    if "values" not in ranges:
        return {point: tuple(ranges[point]) for point in _POINTS}
    values = {f"{point}_values": tuple(ranges["values"][point]) for point in _POINTS}
    return {**dict.fromkeys(_POINTS, tuple(shape)), **values}


def check_against_graph(
    profiles: Sequence[Profile],
    shapes: Mapping[str, Sequence[int]],
    deciding: AbstractSet[str] = frozenset(),
) -> None:
    """Check profiles against the graph's inputs.

    ``shapes`` are the graph's, -1 for a dynamic size; the values of the inputs in ``deciding``
    decide shapes.
    """
    problems = [
        f"profile {number}: {problem}"
        for number, profile in enumerate(profiles)
        for problem in _mismatches(profile, shapes)
    ]
    for name, shape in shapes.items():
        spans = [ranges.get(name, {}) for ranges in profiles] or [{}]
        if -1 in shape and not all(spans):
            problems.append(
                f"the graph's input {name} has dynamic sizes, and there is no range for it"
            )
        if name in deciding and not all("min_values" in span for span in spans):
            problems.append(
                f"the values of the input {name} decide shapes inside the network, and no range is"
                f" given: profiles: [{{{name}: {{values: {{min: […], opt: […], max: […]}}}}}}]"
            )
    if problems:
        hint = "correct dims or the engine's profiles, or export the graph with other axes"
        raise StageError("; ".join(problems), hint)


def add_profiles(
    library: TensorRTLibrary, builder: Any, config: Any, profiles: Sequence[Profile]
) -> None:
    """Add the optimization profiles."""
    for number, ranges in enumerate(profiles):
        profile = builder.create_optimization_profile()
        for name, span in ranges.items():
            profile.set_shape(name, span["min"], span["opt"], span["max"])
            if "min_values" in span:
                values = (span[f"{point}_values"] for point in ("min", "opt", "max"))
                profile.set_shape_input(name, *values)
        if not profile or config.add_optimization_profile(profile) < 0:
            raise StageError(
                f"{library.title} refuses the optimization profile {number}: {ranges}",
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
    candidates = range(len(profiles)) if chosen is None else [chosen]
    for number in candidates:
        if 0 <= number < len(profiles) and _fits(profiles[number], inputs):
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
            if len(low) != len(sizes):
                return False
            if not all(a <= n <= b for a, n, b in zip(low, sizes, high, strict=True)):
                return False
    return True


def _mismatches(ranges_of: Profile, shapes: Mapping[str, Sequence[int]]) -> Iterator[str]:
    for name, ranges in ranges_of.items():
        if name not in shapes:
            yield f"the graph has no input {name}, only {', '.join(shapes) or 'none'}"
            continue
        spans = list(zip(ranges["min"], ranges["max"], strict=True))
        if len(spans) != len(shapes[name]):
            yield f"the graph's input {name} has {len(shapes[name])} dimensions, not {len(spans)}"
            continue
        for axis, (size, (low, high)) in enumerate(zip(shapes[name], spans, strict=True)):
            if size >= 0 and not low == high == size:
                yield f"the graph fixes axis {axis} of {name} at {size}, not {low} to {high}"
