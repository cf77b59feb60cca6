"""Inference of one execution context: shapes, memory, streams.

The shapes and memory of a call stay for the next one with the same shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from buildsys.backends.cuda.device import Buffer, CudaGraph, Device, Event, Stream
from buildsys.backends.interface import Allocate, DeviceTensor, Port, Run
from buildsys.backends.tensorrt.engine_tensors import (
    EngineOutput,
    EngineTensors,
    ValueShapedOutput,
    packed_shape,
)
from buildsys.backends.tensorrt.library import TensorRTLibrary
from buildsys.backends.tensorrt.log import Log, Messages, log_of
from buildsys.backends.tensorrt.profiles import Profile, Shape, choose_profile, read_profiles
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array, Tensor

_Shapes = tuple[str, int | None, dict[str, Shape]]  # kind of memory, profile, shapes of inputs
_CALLS_BEFORE_GRAPH = 4  # on the same memory; doubled by each graph, as shapes may ever change


class Inference:
    """An engine with one execution context, its stream and its buffers."""

    _prepared: _Shapes | None  # the present inference's
    _stream: Stream | None = None  # the last one of a caller
    # the last inference on a caller's stream
    _finished: Event | None = None
    _running_on: int | None = None
    # a graph saves the launches of all kernels, which take longer than many networks compute
    cuda_graphs = False
    graph: CudaGraph | None = None  # captured with the present memory
    _calls_before_graph = _CALLS_BEFORE_GRAPH

    def __init__(self, library: TensorRTLibrary, gpu: Device, engine: Any, context: Any) -> None:
        """Take over an engine and a context of it."""
        self.log: Log = log_of(library)
        self.gpu = gpu
        self._library = library
        self._engine = engine
        self._context = context
        self.tensors = EngineTensors.of(library, engine)
        self.profiles: list[Profile] = read_profiles(library, engine, self.tensors.inputs)
        self._reset_buffers()

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs in the order of the network."""
        return tuple(map(self.tensors.port, self.tensors.inputs))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs in the order of the network."""
        return tuple(map(self.tensors.port, self.tensors.outputs))

    @property
    def stream(self) -> int:
        """The CUDA stream of calls without another one."""
        return self.gpu.main_stream.number

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Compute the outputs by name; the default is the first fitting profile."""
        stream, results = self.gpu.main_stream, {}
        with self.gpu.current(), self.log.collected() as messages:
            self._prepare(inputs, profile, messages)
            self._start_again(messages)
            for name in self.tensors.outputs:
                output, (dtype, stored) = self.results[name], self.tensors.types[name]
                if isinstance(output, ValueShapedOutput):
                    stream.synchronize()  # its shape is known now
                target = np.empty(packed_shape(output.shape, self.tensors.layouts[name]), stored)
                output.buffer.copy_to(target, target.nbytes, stream)
                results[name] = Tensor(target, dtype)
            stream.synchronize()
        return {
            name: self.tensors.unpacked(name, stored, self.results[name].shape)
            for name, stored in results.items()
        }

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Upload the inputs; return a call to compute without copies."""
        with self.gpu.current(), self.log.collected() as messages:
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
        with self.gpu.current(), self.log.collected() as messages:
            self._prepare_on_device(inputs, profile, queue, messages)
            outputs = {
                name: allocate(name, self.tensors.types[name][0], shape)
                for name, shape in self._output_shapes.items()
            }
            for name, new in outputs.items():
                self._set_address(name, new.address)
            self._start(queue, messages)
            for name, output in self.results.items():  # shapes may depend on values
                queue.synchronize()  # its shape is known now
                dtype, stored = self.tensors.types[name]
                outputs[name] = allocate(name, dtype, output.shape)
                size = int(np.prod(output.shape, dtype=np.int64)) * stored.itemsize
                output.buffer.copy_on_device(outputs[name].address, size, queue)
            if stream is None:
                queue.synchronize()
            else:
                self._finished = self._finished or self.gpu.new_event()
                self._finished.record(queue)
                self._running_on = stream
        return {name: outputs[name] for name in self.tensors.outputs}

    def repeat(self) -> None:
        """Run the last ``enqueue`` again, on the same memory, and wait for it."""
        if self.results:
            problem = f"the shape of the output {', '.join(self.results)} depends on values"
            raise StageError(problem, "call the engine instead of binding it")
        self._execute()

    def _execute(self) -> None:
        with self.gpu.current(), self.log.collected() as messages:
            self._start_again(messages)
            self.gpu.main_stream.synchronize()

    def _start_again(self, messages: Messages) -> None:
        """Start on the prepared memory, after some calls with a CUDA graph."""
        start = partial(self._start, self.gpu.main_stream, messages)
        if self.graph is None and self.cuda_graphs and not self._is_value_shaped:
            self._calls += 1
            if self._calls >= self._calls_before_graph:
                try:
                    self.graph = self.gpu.capture(start)
                except StageError:  # e.g. of a condition or a loop in the network
                    self.cuda_graphs = False
                self._calls_before_graph *= 2
        if self.graph is None:
            start()
        else:
            self.graph.launch(self.gpu.main_stream)

    def _start(self, stream: Stream, messages: Messages) -> None:
        if not self._context.execute_async_v3(stream.number):
            for output in self.results.values():
                if output.failure:
                    raise output.failure
            reason = messages.error_text("TensorRT gives no reason")
            raise StageError(f"the engine did not run: {reason}")

    def _prepare(
        self, inputs: Mapping[str, Tensor], profile: int | None, messages: Messages
    ) -> None:
        """Set what differs from the last call, and upload the inputs."""
        stream = self.gpu.main_stream
        self._follow(stream)
        names = self.tensors.require(inputs)
        values = {name: self.tensors.converted(name, inputs[name]) for name in names}
        arrays = {name: self.tensors.packed(name, value) for name, value in values.items()}
        shapes = self._set_shapes("buffers", values, profile, messages)
        if shapes is not None:
            for name in self.tensors.inputs:
                if name not in self.tensors.on_host:
                    buffer = self._new_buffer(name, arrays[name].nbytes)
                    self.input_buffers[name] = buffer, arrays[name]
                    self._set_address(name, buffer.address)
            for name, shape in self._output_shapes.items():
                stored = packed_shape(shape, self.tensors.layouts[name])
                dtype = self.tensors.types[name][1]
                size_bytes = int(np.prod(stored, dtype=np.int64)) * dtype.itemsize
                output = EngineOutput(self._new_buffer(name, size_bytes), shape)
                self.results[name] = output
                self._set_address(name, output.buffer.address)
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
        for name in self.tensors.require(inputs):
            value = inputs[name]
            if isinstance(value, Tensor):
                value = self.tensors.converted(name, value)
            elif name in self.tensors.on_host:
                problem = f"the values of the input {name} decide shapes"
                raise StageError(problem, "pass it as an array in host memory")
            values[name] = value
        self.tensors.check_linear()
        shapes = self._set_shapes("addresses", values, profile, messages)
        self._prepared = shapes or self._prepared
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
        self,
        memory: str,
        inputs: Mapping[str, Tensor | DeviceTensor],
        profile: int | None,
        messages: Messages,
    ) -> _Shapes | None:
        """Set profile, shapes and host inputs; find the output shapes.

        Returns what was set, for ``_prepared``; None if the context has it.
        """
        shapes = (memory, profile, {name: value.shape for name, value in inputs.items()})
        if shapes == self._prepared and not self.tensors.on_host:
            return None
        self._free_buffers()
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
        return shapes

    def _set_address(self, name: str, address: int) -> None:
        if self._addresses.get(name) == address:
            return
        self._forget_graph()
        if not self._context.set_tensor_address(name, address):
            raise StageError(f"the engine does not take the memory for {name}")
        self._addresses[name] = address

    def _forget_graph(self) -> None:
        self._calls = 0
        if self.graph is not None:
            self.gpu.free(self.graph)
            self.graph = None

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
        self._forget_graph()
        self._reset_buffers()

    def _reset_buffers(self) -> None:
        self._prepared = None
        self._calls = 0
        self._is_value_shaped = False  # an output
        self._host: dict[str, Array] = {}  # keeps inputs in host memory alive
        self._addresses: dict[str, int] = {}  # those that the context has
        self._output_shapes: dict[str, Shape] = {}  # without those of value-dependent shape
        self.input_buffers: dict[str, tuple[Buffer, Array]] = {}  # with their values
        self.results: dict[str, EngineOutput] = {}
