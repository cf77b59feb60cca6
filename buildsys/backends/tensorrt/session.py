"""A TensorRT engine on a GPU: device buffers, dynamic shapes, execution."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from copy import copy
from pathlib import Path

import numpy as np

from buildsys.backends.cuda.device import Buffer, Device
from buildsys.backends.interface import Figures, Run
from buildsys.backends.measurement.gpu import GpuTiming
from buildsys.backends.measurement.interleaving import Contender
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.dynamic_outputs import ValueShapedOutput
from buildsys.backends.tensorrt.enum_tables import DTYPES, FORMATS
from buildsys.backends.tensorrt.error_messages import load_failure
from buildsys.backends.tensorrt.inflight import Flights
from buildsys.backends.tensorrt.inspector import layer_kinds, precision_facts, read_layers
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Log, layer_profiler, log_of
from buildsys.backends.tensorrt.profiles import Profile
from buildsys.backends.tensorrt.tensor_layouts import LINEAR, packed, packed_shape, unpacked
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Array, Tensor, tensor_of
from buildsys.system.files import sha256_of

_PACKED = ("int4", "float4e2m1")  # two elements share a byte on the device


class TensorRtSession:
    """A loaded engine with one execution context, on the first GPU."""

    def __init__(self, library: Library, engine_file: Path, kernels: Path | None = None) -> None:
        """Load an engine; ``kernels`` keeps what TensorRT-RTX compiles for it."""
        self._library, self._log = library, log_of(library)
        self._open = ExitStack()
        self._device = Device(0)
        try:
            with self._device.current(), self._log.collected() as messages:
                self._runtime = library.trt.Runtime(self._log.logger)
                self._engine = self._runtime.deserialize_cuda_engine(engine_file.read_bytes())
                if self._engine is None:
                    raise load_failure(engine_file.name, messages, library.release)
                settings = self._open.enter_context(
                    version_adapter.runtime_cache(library, self._engine, kernels)
                )
                arguments = () if settings is None else (settings,)
                self._context = self._engine.create_execution_context(*arguments)
                if self._context is None:
                    raise load_failure(engine_file.name, messages, library.release)
        except BaseException:
            self._device.close()
            raise
        modes, engine = library.trt.TensorIOMode, self._engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        self._inputs = [name for name in names if engine.get_tensor_mode(name) == modes.INPUT]
        self._outputs = [name for name in names if engine.get_tensor_mode(name) == modes.OUTPUT]
        self._dtypes = DTYPES.words(library)
        formats = FORMATS.words(library)
        self._layouts = {
            name: formats.get(engine.get_tensor_format(name), LINEAR) for name in names
        }
        self._buffers: list[Buffer] = []
        self._host: list[Array] = []  # keeps what the engine reads from host memory alive
        self._results: dict[str, tuple[Buffer, tuple[int, ...]]] = {}
        self._value_shaped: dict[str, ValueShapedOutput] = {}
        self._uploaded: dict[str, tuple[Buffer, Array]] = {}
        self._flights: Flights | None = None

    @property
    def profiles(self) -> list[Profile]:
        """Return the optimization profiles: the ranges of the shapes of all inputs, also of fixed ones."""
        count = (
            self._engine.num_optimization_profiles
        )  # at least one, also where all shapes are fixed
        return [
            {name: self._range(name, profile) for name in self._inputs} for profile in range(count)
        ]

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name, copied back from the GPU; ``profile`` is the first that fits when not given."""
        self.bind(inputs, profile)()
        results = {
            **self._results,
            **{name: (made.buffer, made.shape) for name, made in self._value_shaped.items()},
        }
        with self._device.current():
            return {name: self._fetch(name, *results[name]) for name in self._outputs}

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Upload the inputs and return a call that computes and waits, without copies to or from the GPU."""
        missing = [name for name in self._inputs if name not in inputs]
        if missing:
            raise StageError(f"the engine's input {', '.join(missing)} is not given")
        with self._device.current(), self._log.collected() as messages:
            self._forget()
            self._choose_profile({name: inputs[name] for name in self._inputs}, profile)
            for name in self._inputs:
                self._set_input(name, inputs[name])
            unknown = self._context.infer_shapes()
            if unknown:
                raise StageError(
                    f"the engine cannot tell its shapes: {messages.sentence(', '.join(unknown))}"
                )
            for name in self._outputs:
                self._set_output(name)
        return self._execute

    def contenders(self, inputs: Mapping[str, Tensor], timing: GpuTiming) -> dict[str, Contender]:
        """Return what times the engine on these inputs, by name. Only those of the last call may be used.

        Raises: StageError: the engine cannot be timed so (it cannot be captured, or not run beside itself).
        """
        self._land()
        self._flights = Flights(self, inputs, timing)
        return self._flights.contenders

    def describe(self, precision: str) -> Figures:
        """Return the layers that TensorRT made with their precision, the tensors, and the memory beside the weights.

        ``precision`` is what the engine was asked for.
        """
        inspector = self._engine.create_engine_inspector()
        times = self._layer_times()
        inspector.execution_context = (
            self._context
        )  # TensorRT 8.6 knows formats only where all shapes are known
        text = inspector.get_engine_information(self._library.trt.LayerInformationFormat.JSON)
        layers = read_layers(text, precision)
        return {
            "engine_layers": layer_kinds(layers),
            "formats": {name: layout for name, layout in self._layouts.items() if layout != LINEAR},
            "device_memory_bytes": version_adapter.device_memory_bytes(self._library, self._engine),
            **precision_facts(layers, times, precision),
        }

    def _layer_times(self) -> dict[str, float]:
        """Return the time of every layer in milliseconds, of one run on zeros; {} where there is none to time."""
        try:
            call = self.bind(self._zeros())
            call()
            self._profiler, times = layer_profiler(self._library)
            self._context.profiler = self._profiler
            call()
        except StageError:  # inputs of zeros may be none that the engine takes
            return {}
        return times

    def _zeros(self) -> dict[str, Tensor]:
        """Return inputs of the first profile's usual shapes: zeros, or the usual values where they decide shapes."""
        found = {}
        for name, span in self.profiles[0].items():
            values = np.zeros(span["opt"], _numpy_dtype(self._dtype(name)))
            if "opt_values" in span:
                values = np.array(span["opt_values"], values.dtype).reshape(span["opt"])
            elif self._engine.is_shape_inference_io(
                name
            ):  # TensorRT 8.6 crashes where zeros decide shapes
                raise StageError(f"which values {name} usually has is not known")
            found[name] = Tensor(values, self._dtype(name))
        return found

    def close(self) -> None:
        """Free the context, the engine and the device memory, in this order."""
        if self._engine is None:
            return
        self._land()
        with self._device.current():
            self._context = None
            self._open.close()
            self._engine = self._runtime = None
        self._buffers.clear()
        self._results.clear()
        self._value_shaped.clear()
        self._uploaded.clear()
        self._device.close()

    def memory_figures(self) -> Figures:
        """Return the memory that a context of the engine needs beside the weights."""
        return {
            "device_memory_bytes": version_adapter.device_memory_bytes(self._library, self._engine)
        }

    def twin(self) -> TensorRtSession:
        """Return another session of this engine, with a context, a stream and buffers of its own.

        It must be closed before this one. Raises: StageError: there is no memory for another context.
        """
        twin = copy(self)
        twin._device, twin._open, twin._flights = Device(0), ExitStack(), None
        twin._buffers, twin._host, twin._results, twin._value_shaped, twin._uploaded = (
            [],
            [],
            {},
            {},
            {},
        )
        with twin._device.current(), self._log.collected() as messages:
            twin._context = self._engine.create_execution_context()
        if twin._context is None:
            twin._device.close()
            raise StageError(
                messages.sentence("there is no other execution context of this engine")
            )
        if (
            twin._context.active_optimization_profile < 0
        ):  # choosing one that is taken crashes TensorRT 8.6.0
            twin.close()
            raise StageError(
                "an optimization profile of this engine serves one inference at a time"
            )
        return twin

    @property
    def gpu(self) -> Device:
        """Return the device with the stream that this session's work goes to."""
        return self._device

    @property
    def uploaded(self) -> Mapping[str, tuple[Buffer, Array]]:
        """Return the bound inputs on the device, with their values."""
        return self._uploaded

    @property
    def computed(self) -> list[Buffer]:
        """Return where the outputs of the bound inputs lie on the device."""
        return [
            *(buffer for buffer, _ in self._results.values()),
            *(out.buffer for out in self._value_shaped.values()),
        ]

    @property
    def log(self) -> Log:
        """Return the log that says why TensorRT fails."""
        return self._log

    def enqueue(self) -> None:
        """Put one inference on the stream of the device, which must be current.

        Raises: StageError: TensorRT refuses.
        """
        if not self._context.execute_async_v3(self._device.stream):
            raise StageError("the engine did not run")

    def _land(self) -> None:
        if self._flights is not None:
            self._flights.close()
            self._flights = None

    def _execute(self) -> None:
        with self._device.current(), self._log.collected() as messages:
            if not self._context.execute_async_v3(self._device.stream):
                for output in self._value_shaped.values():
                    if output.failure:
                        raise output.failure
                raise StageError(
                    f"the engine did not run: {messages.sentence('TensorRT gives no reason')}"
                )
            self._device.synchronize()

    def _choose_profile(self, inputs: Mapping[str, Tensor], asked: int | None) -> None:
        profiles = self.profiles
        fitting = [number for number, ranges in enumerate(profiles) if _fits(ranges, inputs)]
        shapes = {name: given.shape for name, given in inputs.items()}
        if asked is not None and not 0 <= asked < len(profiles):
            raise StageError(
                f"the engine has no optimization profile {asked}, only {len(profiles)}"
            )
        if asked is not None and asked not in fitting:
            raise StageError(
                f"the optimization profile {asked} of the engine does not hold the shapes {shapes}"
            )
        if not fitting:
            raise StageError(f"no optimization profile of the engine holds the shapes {shapes}")
        chosen = fitting[0] if asked is None else asked
        if chosen != self._context.active_optimization_profile:
            if not self._context.set_optimization_profile_async(chosen, self._device.stream):
                raise StageError(f"the engine's optimization profile {chosen} cannot be chosen")
            self._device.synchronize()

    def _range(self, name: str, profile: int) -> dict[str, tuple[int, ...]]:
        low, usual, high = (
            tuple(point) for point in self._engine.get_tensor_profile_shape(name, profile)
        )
        span = {"min": low, "opt": usual, "max": high}
        values = version_adapter.profile_values(self._library, self._engine, name, profile) or []
        if any(
            len(each) != np.prod(shape) for each, shape in zip(values, span.values(), strict=False)
        ):
            return span  # TensorRT 8.6 tells one value of several
        return {
            **span,
            **{f"{point}_values": each for point, each in zip(span, values, strict=False)},
        }

    def _set_input(self, name: str, value: Tensor) -> None:
        values = _as_dtype(name, value, self._dtype(name))
        if not self._context.set_input_shape(name, value.shape):
            raise StageError(f"the engine's input {name} cannot have the shape {list(value.shape)}")
        if self._engine.get_tensor_location(name) == self._library.trt.TensorLocation.HOST:
            host = np.array(values, order="C")
            self._host.append(host)
            self._set_address(name, host.ctypes.data)
            return
        values = packed(values, self._layouts[name])
        buffer = self._new_buffer(name, values.nbytes)
        buffer.upload(values)
        self._uploaded[name] = (buffer, values)
        self._set_address(name, buffer.address)

    def _set_output(self, name: str) -> None:
        shape = tuple(self._context.get_tensor_shape(name))
        itemsize = _numpy_dtype(self._dtype(name)).itemsize
        if any(size < 0 for size in shape):
            self._value_shaped[name] = output = ValueShapedOutput(
                self._library, self._device, itemsize
            )
            if not self._context.set_output_allocator(name, output.allocator):
                raise StageError(f"the engine does not take memory for {name} while it runs")
            return
        size = int(np.prod(packed_shape(shape, self._layouts[name]), dtype=np.int64))
        buffer = self._new_buffer(name, itemsize * size)
        self._results[name] = (buffer, shape)
        self._set_address(name, buffer.address)

    def _set_address(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise StageError(f"the engine does not take the memory for {name}")

    def _fetch(self, name: str, buffer: Buffer, shape: tuple[int, ...]) -> Tensor:
        dtype = self._dtype(name)
        layout = self._layouts[name]
        target = np.empty(packed_shape(shape, layout), _numpy_dtype(dtype))
        buffer.download(target)
        return Tensor(unpacked(target, layout, shape), dtype)

    def _dtype(self, name: str) -> str:
        dtype = self._dtypes[self._engine.get_tensor_dtype(name)]
        if dtype in _PACKED:
            raise StageError(
                f"{name} is a tensor of {dtype}, which this backend does not pass in or out"
            )
        return dtype

    def _new_buffer(self, name: str, size_bytes: int) -> Buffer:
        try:
            buffer = self._device.allocate(size_bytes)
        except StageError as failure:
            raise StageError(
                f"there is no memory for {name}: {failure.problem}", failure.hint
            ) from failure
        self._buffers.append(buffer)
        return buffer

    def _forget(self) -> None:
        """Free the buffers of the last inputs."""
        while self._buffers:
            self._device.free(self._buffers.pop())
        for output in self._value_shaped.values():
            output.release()
        self._host.clear()
        self._results.clear()
        self._value_shaped.clear()
        self._uploaded.clear()


def kernel_cache_file(engine: Path) -> Path:
    """Return where kernels compiled for an engine are kept, under the digest of its file."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "buildsys" / "kernels" / f"{sha256_of(engine)}.cache"


def _fits(ranges: Profile, inputs: Mapping[str, Tensor]) -> bool:
    for name, given in inputs.items():
        span = ranges[name]
        if not _is_within(given.shape, span["min"], span["max"]):
            return False
        if "min_values" in span:
            values = tuple(int(value) for value in np.ravel(given.array))
            if not _is_within(values, span["min_values"], span["max_values"]):
                return False
    return True


def _is_within(sizes: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...]) -> bool:
    return len(low) == len(sizes) and all(
        a <= n <= b for a, n, b in zip(low, sizes, high, strict=True)
    )


def _numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    return np.dtype(BIT_DTYPES.get(dtype, dtype))


def _as_dtype(name: str, given: Tensor, dtype: str) -> Array:
    """Return the array in the engine's type: TensorRT has no float64, and 8.6 no int64, and turns such inputs.

    Raises: StageError: an integer does not fit the narrower type.
    """
    if given.dtype == dtype:
        return given.array
    values = given.values()
    found = tensor_of(values, dtype).array
    if values.dtype.kind in "iu" and not np.array_equal(found, values):
        text = (
            f"the input {name} has values beyond {dtype}, which the engine takes for {given.dtype}"
        )
        raise StageError(text, "give it smaller numbers, or build it with a later TensorRT")
    return found
