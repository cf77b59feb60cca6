"""A TensorRT engine on a GPU: device buffers, dynamic shapes, execution."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.backends.cuda.device import Buffer, Device
from buildsys.backends.interface import Figures, Port, Run
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.enum_tables import DTYPES, FORMATS
from buildsys.backends.tensorrt.inspector import precision_facts, read_layers
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Log, load_failure, log_of
from buildsys.backends.tensorrt.profiles import Profile
from buildsys.backends.tensorrt.tensor_layouts import LINEAR, packed, packed_shape, unpacked
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Array, Tensor, tensor_of

_PACKED = ("int4", "float4e2m1")  # two elements share a byte on the device


class TensorRtSession:
    """A loaded engine with one execution context, on the first GPU."""

    def __init__(self, library: Library, engine_file: Path, kernels: Path | None = None) -> None:
        """Load an engine; ``kernels`` is TensorRT-RTX's cache of compiled kernels."""
        self.log: Log = log_of(library)
        self._library = library
        self._stack = ExitStack()
        self.gpu = Device(0)
        try:
            with self.gpu.current(), self.log.collected() as messages:
                self._runtime = library.trt.Runtime(self.log.logger)
                self._engine = self._runtime.deserialize_cuda_engine(engine_file.read_bytes())
                if self._engine is None:
                    raise load_failure(engine_file.name, messages, library.release)
                settings = self._stack.enter_context(
                    version_adapter.runtime_cache(library, self._engine, kernels)
                )
                arguments = () if settings is None else (settings,)
                self._context = self._engine.create_execution_context(*arguments)
                if self._context is None:
                    raise load_failure(engine_file.name, messages, library.release)
        except BaseException:
            self.gpu.close()
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
        self._reset_buffers()

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Return the inputs in the order of the network."""
        return tuple(map(self._port, self._inputs))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Return the outputs in the order of the network."""
        return tuple(map(self._port, self._outputs))

    @property
    def profiles(self) -> list[Profile]:
        """Return the shape ranges of all inputs per optimization profile."""
        engine, found = self._engine, []
        for number in range(engine.num_optimization_profiles):  # one if all shapes are fixed
            profile: Profile = {}
            for name in self._inputs:
                low, usual, high = map(tuple, engine.get_tensor_profile_shape(name, number))
                span = {"min": low, "opt": usual, "max": high}
                values = version_adapter.profile_values(self._library, engine, name, number) or []
                points = list(zip(span, values, strict=False))
                # TensorRT 8.6 returns one value of several
                if all(len(given) == np.prod(span[point]) for point, given in points):
                    span.update({f"{point}_values": given for point, given in points})
                profile[name] = span
            found.append(profile)
        return found

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name; default is the first fitting profile."""
        self.bind(inputs, profile)()
        found = {}
        with self.gpu.current():
            for name in self._outputs:
                output, layout = self.results[name], self._layouts[name]
                dtype, stored = self._dtype(name)
                target = np.empty(packed_shape(output.shape, layout), stored)
                output.buffer.download(target)
                found[name] = Tensor(unpacked(target, layout, output.shape), dtype)
        return found

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Upload the inputs; return a call to compute without copies."""
        missing = [name for name in self._inputs if name not in inputs]
        if missing:
            raise StageError(f"the engine's input {', '.join(missing)} is not given")
        with self.gpu.current(), self.log.collected() as messages:
            for buffer, _ in self.input_buffers.values():
                self.gpu.free(buffer)
            for output in self.results.values():
                self.gpu.free(output.buffer)
            self._reset_buffers()
            self._choose_profile({name: inputs[name] for name in self._inputs}, profile)
            for name in self._inputs:
                self._set_input(name, inputs[name])
            unknown = self._context.infer_shapes()
            if unknown:
                reason = messages.error_text(", ".join(unknown))
                raise StageError(f"the engine cannot infer its shapes: {reason}")
            for name in self._outputs:
                self._set_output(name)
        return self._execute

    def describe(self, precision: str) -> Figures:
        """Return layers with their precision, tensor formats and memory needs.

        ``precision`` is the requested precision of the engine.
        """
        inspector = self._engine.create_engine_inspector()
        times = self._layer_times()
        # without a context whose shapes are set, TensorRT 8.6 does not know the formats
        inspector.execution_context = self._context
        text = inspector.get_engine_information(self._library.trt.LayerInformationFormat.JSON)
        return {
            "formats": {name: layout for name, layout in self._layouts.items() if layout != LINEAR},
            **self.memory_figures(),
            **precision_facts(read_layers(text, precision), times, precision),
        }

    def memory_figures(self) -> Figures:
        """Return a context's memory in addition to the weights."""
        return {
            "device_memory_bytes": version_adapter.device_memory_bytes(self._library, self._engine)
        }

    def close(self) -> None:
        """Free the context, the engine and the device memory, in this order."""
        if self._engine is None:
            return
        with self.gpu.current():
            self._context = None
            self._stack.close()
            self._engine = self._runtime = None
        self._reset_buffers()
        self.gpu.close()

    def _execute(self) -> None:
        with self.gpu.current(), self.log.collected() as messages:
            if not self._context.execute_async_v3(int(self.gpu.main_stream.handle)):
                for output in self.results.values():
                    if output.failure:
                        raise output.failure
                reason = messages.error_text("TensorRT gives no reason")
                raise StageError(f"the engine did not run: {reason}")
            self.gpu.main_stream.synchronize()

    def _layer_times(self) -> dict[str, float]:
        """Return the milliseconds per layer on zeros; {} if they fail.

        Inputs with opt values have those, as they decide shapes.
        """
        inputs = {}
        times: dict[str, float] = {}

        class Profiler(self._library.trt.IProfiler):  # type: ignore[misc,name-defined]
            def report_layer_time(self, layer_name: str, ms: float) -> None:
                times[layer_name] = times.get(layer_name, 0.0) + ms

        try:
            for name, span in self.profiles[0].items():
                dtype, stored = self._dtype(name)
                values = np.zeros(span["opt"], stored)
                if "opt_values" in span:
                    values = np.array(span["opt_values"], values.dtype).reshape(span["opt"])
                elif self._engine.is_shape_inference_io(name):  # zeros there crash TensorRT 8.6
                    return {}
                inputs[name] = Tensor(values, dtype)
            call = self.bind(inputs)
            call()
            self._timer = Profiler()  # must outlive the context
            self._context.profiler = self._timer
            call()
        except StageError:
            return {}
        return times

    def _choose_profile(self, inputs: Mapping[str, Tensor], wanted: int | None) -> None:
        profiles = self.profiles
        fitting = [number for number, ranges in enumerate(profiles) if _fits(ranges, inputs)]
        shapes = {name: given.shape for name, given in inputs.items()}
        if wanted is not None and not 0 <= wanted < len(profiles):
            text = f"the engine has no optimization profile {wanted}, only {len(profiles)}"
            raise StageError(text)
        if wanted is not None and wanted not in fitting:
            text = f"the optimization profile {wanted} of the engine does not hold the shapes"
            raise StageError(f"{text} {shapes}")
        if not fitting:
            raise StageError(f"no optimization profile of the engine holds the shapes {shapes}")
        chosen = fitting[0] if wanted is None else wanted
        if chosen != self._context.active_optimization_profile:
            stream = self.gpu.main_stream
            if not self._context.set_optimization_profile_async(chosen, int(stream.handle)):
                raise StageError(f"the engine's optimization profile {chosen} cannot be chosen")
            stream.synchronize()

    def _set_input(self, name: str, value: Tensor) -> None:
        dtype, values = self._dtype(name)[0], value.array
        if value.dtype != dtype:  # TensorRT has no float64, and 8.6 no int64
            given = value.values()
            values = tensor_of(given, dtype).array
            if given.dtype.kind in "iu" and not np.array_equal(values, given):
                raise StageError(
                    f"the input {name} has values beyond {dtype}, the engine's type for"
                    f" {value.dtype}",
                    "use smaller numbers, or build with a later TensorRT",
                )
        if not self._context.set_input_shape(name, value.shape):
            raise StageError(f"the engine's input {name} cannot have the shape {list(value.shape)}")
        if self._engine.get_tensor_location(name) == self._library.trt.TensorLocation.HOST:
            host = np.array(values, order="C")
            self._host.append(host)
            self._set_address(name, host.ctypes.data)
            return
        values = packed(values, self._layouts[name])
        buffer = self._new_buffer(name, values.nbytes)
        self.input_buffers[name] = (buffer, values)
        buffer.upload(values)
        self._set_address(name, buffer.address)

    def _set_output(self, name: str) -> None:
        shape = tuple(self._context.get_tensor_shape(name))
        itemsize = self._dtype(name)[1].itemsize
        if any(size < 0 for size in shape):
            output = ValueShapedOutput(self._library, self.gpu, itemsize)
            self.results[name] = output
            if not self._context.set_output_allocator(name, output.allocator):
                raise StageError(f"the engine does not take memory for {name} while it runs")
            return
        size = int(np.prod(packed_shape(shape, self._layouts[name]), dtype=np.int64))
        buffer = self._new_buffer(name, itemsize * size)
        self.results[name] = Output(buffer, shape)
        self._set_address(name, buffer.address)

    def _set_address(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise StageError(f"the engine does not take the memory for {name}")

    def _dtype(self, name: str) -> tuple[str, np.dtype[np.generic]]:
        """Return a tensor's type, and the type of its storage."""
        dtype = self._dtypes[self._engine.get_tensor_dtype(name)]
        if dtype in _PACKED:
            text = f"{name} is a tensor of {dtype}, which cannot be an input or output here"
            raise StageError(text)
        return dtype, np.dtype(BIT_DTYPES.get(dtype, dtype))

    def _port(self, name: str) -> Port:
        return Port(name, self._dtype(name)[0], tuple(self._engine.get_tensor_shape(name)))

    def _new_buffer(self, name: str, size_bytes: int) -> Buffer:
        try:
            return self.gpu.allocate(size_bytes)
        except StageError as failure:
            text = f"there is no memory for {name}: {failure.problem}"
            raise StageError(text, failure.hint) from failure

    def _reset_buffers(self) -> None:
        self._host: list[Array] = []  # keeps inputs in host memory alive
        self.input_buffers: dict[str, tuple[Buffer, Array]] = {}  # with their values
        self.results: dict[str, Output] = {}


@dataclass(eq=False)
class Output:
    """An output's memory and shape."""

    buffer: Buffer
    shape: tuple[int, ...] = ()
    failure: StageError | None = None  # of a request for more memory


class ValueShapedOutput(Output):
    """The memory and shape of an output of value-dependent shape.

    TensorRT requests its memory while it runs.
    Source: TensorRT developer guide, "Dynamically Shaped Output".
    """

    def __init__(self, library: Library, device: Device, reserved_bytes: int) -> None:
        """Reserve some memory; ``allocator`` must outlive the context."""
        super().__init__(device.allocate(reserved_bytes))
        self._device = device
        output = self

        class Allocator(library.trt.IOutputAllocator):  # type: ignore[misc,name-defined]
            def reallocate_output(
                self, tensor_name: str, memory: Any, size: int, alignment: int  # noqa: ARG002
            ) -> int:  # fmt: skip
                return output.address_of(size)

            def reallocate_output_async(
                self, tensor_name: str, memory: Any, size: int,  # noqa: ARG002
                alignment: int, stream: Any,  # noqa: ARG002
            ) -> int:  # fmt: skip
                return output.address_of(size)

            def notify_shape(self, tensor_name: str, shape: Any) -> None:  # noqa: ARG002
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


def _fits(ranges: Profile, inputs: Mapping[str, Tensor]) -> bool:
    for name, given in inputs.items():
        span = ranges[name]
        checks = [(given.shape, span["min"], span["max"])]
        if "min_values" in span:
            values = tuple(int(value) for value in np.ravel(given.array))
            checks.append((values, span["min_values"], span["max_values"]))
        for sizes, low, high in checks:
            if len(low) != len(sizes) or not all(
                a <= n <= b for a, n, b in zip(low, sizes, high, strict=True)
            ):
                return False
    return True
