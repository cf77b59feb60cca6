"""Inference of one execution context: profile, shapes, memory, streams.

The shapes and memory of a call stay for the next one with the same shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np

from buildsys.backends.cuda.device import Buffer, CudaGraph, Device, Event, HostBuffer, Stream
from buildsys.backends.interface import Allocate, DeviceMemory, DeviceTensor, Port, Run
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.enum_tables import DTYPES, FORMATS
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Collected, Log, Messages, log_of
from buildsys.backends.tensorrt.outputs import Output, ValueShapedOutput
from buildsys.backends.tensorrt.profiles import Profile, Shape, format_ranges
from buildsys.backends.tensorrt.tensor_layouts import LINEAR, packed, packed_shape, unpacked
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Array, Tensor, tensor_of

AnyTensor = Tensor | DeviceTensor
# smaller outputs pass through page-locked memory: copies to other memory wait one by one
_STAGED_BYTES = 1 << 20
_GRAPHS = 8  # of the present shapes, so that those of changing addresses are few
_PACKED = ("int4", "float4e2m1")  # two elements share a byte on the device


class Scope(Collected):
    """The GPU as the thread's own and the messages of TensorRT, for one call after the other."""

    __slots__ = ("_current",)

    def __init__(self, gpu: Device, log: Log) -> None:
        super().__init__(log)
        self._current = gpu.current()

    def __enter__(self) -> Messages:
        self._current.__enter__()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._current.__exit__()


class Inference:
    """An engine with one execution context, its stream and its buffers."""

    # kind of memory, profile and shapes of the present inference
    _prepared: tuple[str, int | None, dict[str, Shape]] | None
    _stream: Stream | None = None  # the last one of a caller
    # shape and type of inputs and of outputs, if a call on GPU memory can be repeated
    _repeatable: tuple[list[tuple[str, tuple[Shape, str]]], ...] | None
    _next: dict[str, DeviceMemory]  # outputs of the next call
    uses_graphs = False  # where an inference is repeated on the same memory
    _calls_before_graph = 4
    # the last inference on a caller's stream
    _finished: Event | None = None
    _running_on: int | None = None

    def __init__(self, library: Library, gpu: Device, engine: Any, context: Any) -> None:
        """Take over an engine and a context of it."""
        self.log: Log = log_of(library)
        self.gpu = gpu
        self._library = library
        self._engine = engine
        self._context = context
        modes = library.trt.TensorIOMode
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        self._inputs = [name for name in names if engine.get_tensor_mode(name) == modes.INPUT]
        self._outputs = [name for name in names if engine.get_tensor_mode(name) == modes.OUTPUT]
        self._input_names = frozenset(self._inputs)
        self._dtypes = DTYPES.words(library)
        self._types: dict[str, tuple[str, np.dtype[np.generic]]] = {}
        formats = FORMATS.words(library)
        self._layouts = {
            name: formats.get(engine.get_tensor_format(name), LINEAR) for name in names
        }
        self._is_linear = set(self._layouts.values()) <= {LINEAR}
        on_host = library.trt.TensorLocation.HOST  # inputs whose values decide shapes
        self._on_host = {n for n in self._inputs if engine.get_tensor_location(n) == on_host}
        self.profiles = self._read_profiles()
        self._scope = Scope(gpu, self.log)
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
    def stream(self) -> int:
        """Return the CUDA stream of calls without another one."""
        return self.gpu.main_stream.number

    def _read_profiles(self) -> list[Profile]:
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
        stream, found = self.gpu.main_stream, {}
        with self._scope as messages:
            if not self._upload(inputs, profile):
                self._prepare(inputs, profile, messages)
            self._start_again((), messages)
            staged = []
            for name in self._outputs:
                output, (dtype, stored) = self.results[name], self._dtype(name)
                if isinstance(output, ValueShapedOutput):
                    stream.synchronize()  # its shape is known now
                target = output.staged
                if target is None:
                    target = np.empty(packed_shape(output.shape, self._layouts[name]), stored)
                else:
                    staged.append(name)
                output.buffer.copy_to(target, target.nbytes, stream)
                found[name] = Tensor(target, dtype)
            stream.synchronize()
        for name in staged:
            found[name] = Tensor(found[name].array.copy(), found[name].dtype)
        if self._is_linear:
            return found
        for name, layout in self._layouts.items():
            if layout != LINEAR and name in found:
                target, shape = found[name].array, self.results[name].shape
                found[name] = Tensor(unpacked(target, layout, shape), found[name].dtype)
        return found

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Upload the inputs; return a call to compute without copies."""
        with self._scope as messages:
            self._prepare(inputs, profile, messages)
            self.gpu.main_stream.synchronize()
        return self._execute

    def enqueue(
        self,
        inputs: Mapping[str, Tensor | DeviceTensor],
        allocate: Allocate,
        stream: int | None = None,
        profile: int | None = None,
    ) -> dict[str, DeviceTensor]:
        """Put an inference on a stream; return its outputs.

        Their memory is from ``allocate``. Without ``stream`` they are complete on return, else as
        soon as the stream gets there. Inputs whose values decide shapes must be in host memory.
        """
        queue = self.gpu.main_stream
        if stream is not None:
            if self._stream is None or self._stream.number != stream:
                self._stream = Stream(stream)
            queue = self._stream
        with self._scope as messages:
            self._prepare_on_device(inputs, profile, queue, messages)
            found = self._new_outputs(allocate)
            for name, new in found.items():
                self._set_address(name, new.address)
            self._start(queue, messages)
            for name, output in self.results.items():  # of value-dependent shapes
                queue.synchronize()  # its shape is known now
                dtype, stored = self._dtype(name)
                found[name] = allocate(name, dtype, output.shape)
                size = int(np.prod(output.shape, dtype=np.int64)) * stored.itemsize
                output.buffer.copy_on_device(found[name].address, size, queue)
            if stream is None:
                queue.synchronize()
                self._note_repeatable(inputs, profile)
            else:
                self._finished = self._finished or self.gpu.new_event()
                self._finished.record(queue)
                self._running_on = stream
        return {name: found[name] for name in self._outputs} if self.results else found

    def enqueue_again(
        self,
        inputs: Mapping[str, DeviceMemory],
        outputs: Mapping[str, DeviceMemory] | None,
        allocate: Allocate,
    ) -> Mapping[str, DeviceMemory] | None:
        """Do the work of the last ``enqueue`` on other memory, and wait for it.

        Returns the outputs, or None if names, types, shapes or profile may differ. New outputs are
        allocated for the next call, while the GPU computes.
        """
        if self._repeatable is None or self._running_on is not None:
            return None
        found = outputs
        if found is None:
            found = self._next or self._new_arrays(allocate)
        addresses = []
        for arrays, expected in zip((inputs, found), self._repeatable, strict=True):
            if len(arrays) != len(expected):
                return None
            for name, shape_and_dtype in expected:
                array = arrays.get(name)
                if array is None or array.tensor[1:3] != shape_and_dtype:
                    return None
                addresses.append(array.tensor[0])
        with self._scope as messages:
            self._start_again(tuple(addresses), messages)
            if outputs is None:
                self._next = {}
                with suppress(StageError):  # too little memory
                    self._next = self._new_arrays(allocate)
            self.gpu.main_stream.synchronize()
        return found

    def _new_arrays(self, allocate: Allocate) -> dict[str, DeviceMemory]:
        return {name: output.array for name, output in self._new_outputs(allocate).items()}

    def _note_repeatable(
        self, inputs: Mapping[str, Tensor | DeviceTensor], profile: int | None
    ) -> None:
        on_gpu = all(isinstance(value, DeviceTensor) for value in inputs.values())
        if not on_gpu or self.results or self._on_host or profile is not None:
            self._repeatable = None
        elif self._repeatable is None:
            shapes = {name: inputs[name].shape for name in self._inputs}
            self._repeatable = tuple(
                [(name, (shape, self._dtype(name)[0])) for name, shape in each.items()]
                for each in (shapes, self._output_shapes)
            )

    def _new_outputs(self, allocate: Allocate) -> dict[str, DeviceTensor]:
        return {
            name: allocate(name, self._dtype(name)[0], shape)
            for name, shape in self._output_shapes.items()
        }

    def repeat(self) -> None:
        """Run the last ``enqueue`` again, on the same memory, and wait for it."""
        if self.results:
            problem = f"the shape of the output {', '.join(self.results)} depends on values"
            raise StageError(problem, "call the engine instead of binding it")
        self._execute()

    def _execute(self) -> None:
        with self._scope as messages:
            self._start_again((), messages)
            self.gpu.main_stream.synchronize()

    def _start_again(self, addresses: tuple[int, ...], messages: Messages) -> None:
        """Start on other memory, () for the same, with a CUDA graph if that was used before.

        A graph saves the launches of all kernels, which take longer than many networks compute.
        Each one that is made doubles the number of calls before the next one, as those of ever
        changing shapes or addresses would cost more than they save.
        """
        graph = self._graphs.get(addresses)
        if graph is not None:
            graph.launch(self.gpu.main_stream)
            return
        if addresses:
            for (name, _), address in zip(chain(*self._repeatable or ()), addresses, strict=True):
                self._set_address(name, address)
        calls = self._calls[addresses] = self._calls.get(addresses, 0) + 1
        if (
            self.uses_graphs
            and calls >= self._calls_before_graph
            and len(self._graphs) < _GRAPHS
            and not any(isinstance(each, ValueShapedOutput) for each in self.results.values())
        ):
            stream = self.gpu.main_stream
            try:
                graph = self.gpu.capture(lambda: self._start(stream, messages))
            except StageError:  # e.g. of a condition or a loop in the network
                self.uses_graphs = False
            else:
                self._graphs[addresses] = graph
                self._calls_before_graph *= 2
                graph.launch(stream)
                return
        if len(self._calls) > 100 * _GRAPHS:
            self._calls.clear()
        self._start(self.gpu.main_stream, messages)

    def _start(self, stream: Stream, messages: Messages) -> None:
        if not self._context.execute_async_v3(stream.number):
            for output in self.results.values():
                if output.failure:
                    raise output.failure
            reason = messages.error_text("TensorRT gives no reason")
            raise StageError(f"the engine did not run: {reason}")

    def _upload(self, inputs: Mapping[str, Tensor], profile: int | None) -> bool:
        """Upload inputs like those of the last call; return False for others."""
        prepared = self._prepared
        if prepared is None or prepared[:2] != ("buffers", profile):
            return False
        if self._on_host or not self._is_linear or self._running_on is not None:
            return False
        for name, shape in prepared[2].items():
            value = inputs.get(name)
            if value is None or value.dtype != self._dtype(name)[0]:
                return False
            array = value.array
            if array.shape != shape or not array.flags.c_contiguous:
                return False
            self.input_buffers[name][0].copy_from(array, array.nbytes, self.gpu.main_stream)
        return True

    def _prepare(
        self, inputs: Mapping[str, Tensor], profile: int | None, messages: Messages
    ) -> None:
        """Set what differs from the last call, and upload the inputs."""
        stream = self.gpu.main_stream
        self._follow(stream)
        given = {name: self._in_own_type(name, inputs[name]) for name in self._given(inputs)}
        arrays = {
            name: np.asarray(packed(value.array, self._layouts[name]), order="C")
            for name, value in given.items()
        }
        shapes = ("buffers", profile, {name: value.shape for name, value in given.items()})
        if shapes != self._prepared or self._on_host:
            self._free_buffers()
            self._set_shapes(given, profile, messages)
            for name in self._inputs:
                if name not in self._on_host:
                    buffer = self._new_buffer(name, arrays[name].nbytes)
                    self.input_buffers[name] = buffer, arrays[name]
                    self._set_address(name, buffer.address)
            for name, shape in self._output_shapes.items():
                elements = np.prod(packed_shape(shape, self._layouts[name]), dtype=np.int64)
                buffer = self._new_buffer(name, int(elements) * self._dtype(name)[1].itemsize)
                self.results[name] = output = Output(buffer, shape)
                self._set_address(name, buffer.address)
                if 0 < buffer.size_bytes <= _STAGED_BYTES:
                    with suppress(StageError):  # too little page-locked memory
                        locked = self.gpu.allocate_locked(buffer.size_bytes)
                        self._locked.append(locked)
                        stored = packed_shape(shape, self._layouts[name])
                        output.staged = locked.array.view(self._dtype(name)[1]).reshape(stored)
            self._prepared = shapes
        for name, (buffer, _) in self.input_buffers.items():
            self.input_buffers[name] = buffer, arrays[name]  # alive until it is uploaded
            buffer.copy_from(arrays[name], arrays[name].nbytes, stream)

    def _prepare_on_device(
        self,
        inputs: Mapping[str, Tensor | DeviceTensor],
        profile: int | None,
        stream: Stream,
        messages: Messages,
    ) -> None:
        """Set what differs from the last call, and the addresses of inputs."""
        self._follow(stream)
        given = {}
        for name in self._given(inputs):
            value = inputs[name]
            if isinstance(value, Tensor):
                value = self._in_own_type(name, value)
            elif name in self._on_host:
                problem = f"the values of the input {name} decide shapes"
                raise StageError(problem, "pass it as an array in host memory")
            given[name] = value
        if not self._is_linear:
            name, layout = next(item for item in self._layouts.items() if item[1] != LINEAR)
            problem = f"{name} is stored as {layout}, unlike arrays of other libraries"
            raise StageError(problem, "pass arrays in host memory, or build without `io`")
        shapes = ("addresses", profile, {name: value.shape for name, value in given.items()})
        if shapes != self._prepared or self._on_host:
            self._free_buffers()
            self._set_shapes(given, profile, messages)
            self._prepared = shapes
        for name, value in given.items():
            if isinstance(value, DeviceTensor):
                self._set_address(name, value.address)
            elif name not in self._on_host:
                array = np.asarray(value.array, order="C")
                if name not in self.input_buffers:
                    self.input_buffers[name] = self._new_buffer(name, array.nbytes), array
                buffer = self.input_buffers[name][0]
                self.input_buffers[name] = buffer, array
                buffer.copy_from(array, array.nbytes, stream)
                self._set_address(name, buffer.address)

    def _follow(self, stream: Stream) -> None:
        """Let a stream wait for an inference still running on another one."""
        if self._finished is not None and self._running_on not in (None, stream.number):
            stream.wait_for(self._finished)
            self._running_on = None

    def _given(self, inputs: Mapping[str, object]) -> list[str]:
        if inputs.keys() >= self._input_names:
            return self._inputs
        missing = [name for name in self._inputs if name not in inputs]
        raise StageError(
            f"the engine's input {', '.join(missing)} is not given",
            "give every input of the engine",
        )

    def _set_shapes(
        self, inputs: Mapping[str, AnyTensor], profile: int | None, messages: Messages
    ) -> None:
        """Set profile, shapes and host inputs; find the output shapes."""
        self._choose_profile(inputs, profile)
        for name, value in inputs.items():
            if not self._context.set_input_shape(name, value.shape):
                problem = f"the engine's input {name} cannot have the shape {list(value.shape)}"
                raise StageError(problem, "give a shape within the engine's optimization profiles")
            if name in self._on_host and isinstance(value, Tensor):
                self._host[name] = np.array(value.array, order="C")
                self._set_address(name, self._host[name].ctypes.data)
        unknown = self._context.infer_shapes()
        if unknown:
            reason = messages.error_text(", ".join(unknown))
            raise StageError(f"the engine cannot infer its shapes: {reason}")
        for name in self._outputs:
            shape = tuple(self._context.get_tensor_shape(name))
            if all(size >= 0 for size in shape):
                self._output_shapes[name] = shape
                continue
            output = ValueShapedOutput(self._library, self.gpu, self._dtype(name)[1].itemsize)
            self.results[name] = output
            if not self._context.set_output_allocator(name, output.allocator):
                raise StageError(f"the engine does not take memory for {name} while it runs")

    def _choose_profile(self, inputs: Mapping[str, AnyTensor], wanted: int | None) -> None:
        profiles = self.profiles
        fitting = [number for number, ranges in enumerate(profiles) if _fits(ranges, inputs)]
        shapes = {name: given.shape for name, given in inputs.items()}
        known = "; ".join(
            f"profile {number}: {format_ranges(ranges)}" for number, ranges in enumerate(profiles)
        )
        if wanted is not None and not 0 <= wanted < len(profiles):
            text = f"the engine has no optimization profile {wanted}, only {len(profiles)}"
            raise StageError(text, known)
        if wanted is not None and wanted not in fitting:
            text = f"the optimization profile {wanted} of the engine does not hold the shapes"
            raise StageError(f"{text} {shapes}", known)
        if not fitting:
            text = f"no optimization profile of the engine holds the shapes {shapes}"
            raise StageError(text, known)
        chosen = fitting[0] if wanted is None else wanted
        if chosen != self._context.active_optimization_profile:
            stream = self.gpu.main_stream
            if not self._context.set_optimization_profile_async(chosen, int(stream.handle)):
                raise StageError(f"the engine's optimization profile {chosen} cannot be chosen")
            stream.synchronize()

    def _in_own_type(self, name: str, value: Tensor) -> Tensor:
        """Return an input in the engine's type."""
        dtype = self._dtype(name)[0]
        if value.dtype == dtype:
            return value
        # TensorRT has no float64, and 8.6 no int64
        given = value.values()
        converted = tensor_of(given, dtype)
        if given.dtype.kind in "iu" and not np.array_equal(converted.array, given):
            raise StageError(
                f"the input {name} has values beyond {dtype}, the engine's type for {value.dtype}",
                "use smaller numbers, or build with a later TensorRT",
            )
        return converted

    def _set_address(self, name: str, address: int) -> None:
        if self._addresses.get(name) == address:
            return
        self._calls.pop((), None)
        if () in self._graphs:
            self.gpu.free(self._graphs.pop(()))
        if not self._context.set_tensor_address(name, address):
            raise StageError(f"the engine does not take the memory for {name}")
        self._addresses[name] = address

    def _dtype(self, name: str) -> tuple[str, np.dtype[np.generic]]:
        """Return a tensor's type, and the type of its storage."""
        if name in self._types:
            return self._types[name]
        dtype = self._dtypes[self._engine.get_tensor_dtype(name)]
        if dtype in _PACKED:
            text = f"{name} is a tensor of {dtype}, which cannot be an input or output here"
            raise StageError(text, "cast it in the network")
        self._types[name] = dtype, np.dtype(BIT_DTYPES.get(dtype, dtype))
        return self._types[name]

    def _port(self, name: str) -> Port:
        return Port(name, self._dtype(name)[0], tuple(self._engine.get_tensor_shape(name)))

    def _new_buffer(self, name: str, size_bytes: int) -> Buffer:
        try:
            return self.gpu.allocate(size_bytes)
        except StageError as failure:
            text = f"there is no memory for {name}: {failure.problem}"
            raise StageError(text, failure.hint) from failure

    def _free_buffers(self) -> None:
        if self._finished is not None:  # an inference may still use them, and the present shapes
            self._finished.wait()
        for buffer, _ in self.input_buffers.values():
            self.gpu.free(buffer)
        for output in self.results.values():
            self.gpu.free(output.buffer)
        for resource in (*self._locked, *self._graphs.values()):
            self.gpu.free(resource)
        self._reset_buffers()

    def _reset_buffers(self) -> None:
        self._prepared = None
        self._repeatable = None
        self._next = {}
        self._graphs: dict[tuple[int, ...], CudaGraph] = {}  # by addresses
        self._calls: dict[tuple[int, ...], int] = {}  # without a graph
        self._host: dict[str, Array] = {}  # keeps inputs in host memory alive
        self._addresses: dict[str, int] = {}  # those that the context has
        self._output_shapes: dict[str, Shape] = {}  # without those of value-dependent shape
        self.input_buffers: dict[str, tuple[Buffer, Array]] = {}  # with their values
        self.results: dict[str, Output] = {}
        self._locked: list[HostBuffer] = []


def _fits(ranges: Profile, inputs: Mapping[str, AnyTensor]) -> bool:
    for name, given in inputs.items():
        span = ranges[name]
        checks = [(given.shape, span["min"], span["max"])]
        if "min_values" in span and isinstance(given, Tensor):
            values = tuple(int(value) for value in np.ravel(given.array))
            checks.append((values, span["min_values"], span["max_values"]))
        for sizes, low, high in checks:
            if len(low) != len(sizes) or not all(
                a <= n <= b for a, n, b in zip(low, sizes, high, strict=True)
            ):
                return False
    return True
