"""Inference of one execution context: shapes, memory, streams.

The shapes and memory of a call stay for the next one with the same shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from buildsys.backends.cuda.device import Buffer, Device, Event, Stream
from buildsys.backends.interface import Allocate, DeviceMemory, DeviceTensor, Port, Run
from buildsys.backends.tensorrt.call_memory import (
    MOST_GRAPHS,
    CallGraphs,
    Output,
    ValueShapedOutput,
)
from buildsys.backends.tensorrt.engine_tensors import EngineTensors, packed_shape
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Log, Messages, Scope, log_of
from buildsys.backends.tensorrt.profiles import Profile, Shape, choose_profile, read_profiles
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array, Tensor


class Inference:
    """An engine with one execution context, its stream and its buffers."""

    # kind of memory, profile and shapes of the present inference
    _prepared: tuple[str, int | None, dict[str, Shape]] | None
    _stream: Stream | None = None  # the last one of a caller
    # shape and type of inputs and of outputs, if a call on GPU memory can be repeated
    _repeatable: tuple[list[tuple[str, tuple[Shape, str]]], ...] | None
    _next: dict[str, DeviceMemory]  # outputs of the next call
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
        self.tensors = EngineTensors.of(library, engine)
        self.profiles: list[Profile] = read_profiles(library, engine, self.tensors.inputs)
        self.graphs = CallGraphs(gpu)
        self._scope = Scope(gpu, self.log)
        self._reset_buffers()

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Return the inputs in the order of the network."""
        return tuple(map(self.tensors.port, self.tensors.inputs))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Return the outputs in the order of the network."""
        return tuple(map(self.tensors.port, self.tensors.outputs))

    @property
    def stream(self) -> int:
        """Return the CUDA stream of calls without another one."""
        return self.gpu.main_stream.number

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name; default is the first fitting profile."""
        stream, results = self.gpu.main_stream, {}
        with self._scope as messages:
            if not self._upload(inputs, profile):
                self._prepare(inputs, profile, messages)
            self._start_again((), messages)
            staged = []
            for name in self.tensors.outputs:
                output, (dtype, stored) = self.results[name], self.tensors.types[name]
                if isinstance(output, ValueShapedOutput):
                    stream.synchronize()  # its shape is known now
                target = output.staged
                if target is None:
                    layout = self.tensors.layouts[name]
                    target = np.empty(packed_shape(output.shape, layout), stored)
                else:
                    staged.append(name)
                output.buffer.copy_to(target, target.nbytes, stream)
                results[name] = Tensor(target, dtype)
            stream.synchronize()
        for name in staged:
            results[name] = Tensor(results[name].array.copy(), results[name].dtype)
        if self.tensors.is_linear:
            return results
        return {
            name: self.tensors.unpacked(name, stored, self.results[name].shape)
            for name, stored in results.items()
        }

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
            outputs = self._new_outputs(allocate)
            for name, new in outputs.items():
                self._set_address(name, new.address)
            self._start(queue, messages)
            for name, output in self.results.items():  # of value-dependent shapes
                queue.synchronize()  # its shape is known now
                dtype, stored = self.tensors.types[name]
                outputs[name] = allocate(name, dtype, output.shape)
                size = int(np.prod(output.shape, dtype=np.int64)) * stored.itemsize
                output.buffer.copy_on_device(outputs[name].address, size, queue)
            if stream is None:
                queue.synchronize()
                self._note_repeatable(inputs, profile)
            else:
                self._finished = self._finished or self.gpu.new_event()
                self._finished.record(queue)
                self._running_on = stream
        return {name: outputs[name] for name in self.tensors.outputs} if self.results else outputs

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
        if not on_gpu or self.results or self.tensors.on_host or profile is not None:
            self._repeatable = None
        elif self._repeatable is None:
            shapes = {name: inputs[name].shape for name in self.tensors.inputs}
            self._repeatable = tuple(
                [(name, (shape, self.tensors.types[name][0])) for name, shape in shape_of.items()]
                for shape_of in (shapes, self._output_shapes)
            )

    def _new_outputs(self, allocate: Allocate) -> dict[str, DeviceTensor]:
        return {
            name: allocate(name, self.tensors.types[name][0], shape)
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
        """Start on other memory, () for the same, with a CUDA graph if there is one."""
        graphs, stream = self.graphs, self.gpu.main_stream
        graph = graphs.captured.get(addresses)
        if graph is None:
            if addresses:
                places = zip(chain(*self._repeatable or ()), addresses, strict=True)
                for (name, _), address in places:
                    if self._addresses.get(name) != address:
                        self._set_address(name, address)
            has_room = graphs.enabled and len(graphs.captured) < MOST_GRAPHS
            if has_room and not self._is_value_shaped:
                graph = graphs.capture(addresses, partial(self._start, stream, messages))
        if graph is None:
            self._start(stream, messages)
        else:
            graph.launch(stream)

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
        if self.tensors.on_host or not self.tensors.is_linear or self._running_on is not None:
            return False
        for name, shape in prepared[2].items():
            value = inputs.get(name)
            if value is None or value.dtype != self.tensors.types[name][0]:
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
        values = {
            name: self.tensors.converted(name, inputs[name]) for name in self.tensors.given(inputs)
        }
        arrays = {name: self.tensors.packed(name, value) for name, value in values.items()}
        shapes = ("buffers", profile, {name: value.shape for name, value in values.items()})
        if shapes != self._prepared or self.tensors.on_host:
            self._free_buffers()
            self._set_shapes(values, profile, messages)
            for name in self.tensors.inputs:
                if name not in self.tensors.on_host:
                    buffer = self._new_buffer(name, arrays[name].nbytes)
                    self.input_buffers[name] = buffer, arrays[name]
                    self._set_address(name, buffer.address)
            for name, shape in self._output_shapes.items():
                stored = packed_shape(shape, self.tensors.layouts[name])
                dtype = self.tensors.types[name][1]
                size_bytes = int(np.prod(stored, dtype=np.int64)) * dtype.itemsize
                output = Output(self._new_buffer(name, size_bytes), shape)
                self.results[name] = output
                self._set_address(name, output.buffer.address)
                output.stage(self.gpu, stored, dtype)
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
        values = {}
        for name in self.tensors.given(inputs):
            value = inputs[name]
            if isinstance(value, Tensor):
                value = self.tensors.converted(name, value)
            elif name in self.tensors.on_host:
                problem = f"the values of the input {name} decide shapes"
                raise StageError(problem, "pass it as an array in host memory")
            values[name] = value
        if not self.tensors.is_linear:
            raise self.tensors.layout_problem()
        shapes = ("addresses", profile, {name: value.shape for name, value in values.items()})
        if shapes != self._prepared or self.tensors.on_host:
            self._free_buffers()
            self._set_shapes(values, profile, messages)
            self._prepared = shapes
        for name, value in values.items():
            if isinstance(value, DeviceTensor):
                self._set_address(name, value.address)
            elif name not in self.tensors.on_host:
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

    def _set_shapes(
        self, inputs: Mapping[str, Tensor | DeviceTensor], profile: int | None, messages: Messages
    ) -> None:
        """Set profile, shapes and host inputs; find the output shapes."""
        chosen = choose_profile(self.profiles, inputs, profile)
        if chosen != self._context.active_optimization_profile:
            stream = self.gpu.main_stream
            if not self._context.set_optimization_profile_async(chosen, int(stream.handle)):
                raise StageError(f"the engine's optimization profile {chosen} cannot be chosen")
            stream.synchronize()
        for name, value in inputs.items():
            if not self._context.set_input_shape(name, value.shape):
                problem = f"the engine's input {name} cannot have the shape {list(value.shape)}"
                raise StageError(problem, "give a shape within the engine's optimization profiles")
            if name in self.tensors.on_host and isinstance(value, Tensor):
                self._host[name] = np.array(value.array, order="C")
                self._set_address(name, self._host[name].ctypes.data)
        unknown = self._context.infer_shapes()
        if unknown:
            reason = messages.error_text(", ".join(unknown))
            raise StageError(f"the engine cannot infer its shapes: {reason}")
        for name in self.tensors.outputs:
            shape = tuple(self._context.get_tensor_shape(name))
            if all(size >= 0 for size in shape):
                self._output_shapes[name] = shape
                continue
            itemsize = self.tensors.types[name][1].itemsize
            output = ValueShapedOutput(self._library, self.gpu, itemsize)
            self.results[name] = output
            self._is_value_shaped = True
            if not self._context.set_output_allocator(name, output.allocator):
                raise StageError(f"the engine does not take memory for {name} while it runs")

    def _set_address(self, name: str, address: int) -> None:
        if self._addresses.get(name) == address:
            return
        if () in self.graphs.calls:
            self.graphs.forget(())
        if not self._context.set_tensor_address(name, address):
            raise StageError(f"the engine does not take the memory for {name}")
        self._addresses[name] = address

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
            output.free(self.gpu)
        self.graphs.free()
        self._reset_buffers()

    def _reset_buffers(self) -> None:
        self._prepared = None
        self._repeatable = None
        self._next = {}
        self._is_value_shaped = False  # an output
        self._host: dict[str, Array] = {}  # keeps inputs in host memory alive
        self._addresses: dict[str, int] = {}  # those that the context has
        self._output_shapes: dict[str, Shape] = {}  # without those of value-dependent shape
        self.input_buffers: dict[str, tuple[Buffer, Array]] = {}  # with their values
        self.results: dict[str, Output] = {}
