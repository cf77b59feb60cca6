"""Inference of one execution context: shapes, memory, streams.

The shapes and memory of a call stay for the next one with the same shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from buildsys.backends.cuda_device import Buffer, CudaGraph, Device, Event, Stream
from buildsys.backends.interface import Allocate, DeviceTensor, Port, Run
from buildsys.backends.tensorrt.engine_tensors import (
    EngineOutput,
    EngineTensors,
    Profile,
    Shape,
    ValueShapedOutput,
    choose_profile,
    packed_shape,
    read_profiles,
)
from buildsys.backends.tensorrt.library import Log, Messages, TensorRTLibrary, log_of
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array, Tensor

_Shapes = tuple[int | None, dict[str, Shape]]  # profile, shapes of inputs
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
            self._prepare(inputs, profile, stream, messages)
            self._place_outputs()
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
            self._prepare(inputs, profile, self.gpu.main_stream, messages)
            self._place_outputs()
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
        self.tensors.check_linear()
        with self.gpu.current(), self.log.collected() as messages:
            self._prepare(inputs, profile, queue, messages)
            outputs = {
                name: allocate(name, self.tensors.types[name][0], shape)
                for name, shape in self._output_shapes.items()
            }
            for name, new in outputs.items():
                self._set_address(name, new.address)
            if stream is None:
                self._start_again(messages)
            else:
                self._start(queue, messages)
            for name, output in self._value_shaped().items():
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

    def _execute(self) -> None:
        with self.gpu.current(), self.log.collected() as messages:
            self._start_again(messages)
            self.gpu.main_stream.synchronize()

    def _start_again(self, messages: Messages) -> None:
        """Start on the prepared memory, after some calls with a CUDA graph."""
        start = partial(self._start, self.gpu.main_stream, messages)
        if self.graph is None and self.cuda_graphs and not self._value_shaped():
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
        self,
        inputs: Mapping[str, Tensor | DeviceTensor],
        profile: int | None,
        stream: Stream,
        messages: Messages,
    ) -> None:
        """Set what differs from the last call; upload inputs in host memory."""
        self._follow(stream)
        values = {name: self._checked(name, inputs[name]) for name in self.tensors.require(inputs)}
        self._set_shapes(values, profile, messages)
        for name, value in values.items():
            if isinstance(value, DeviceTensor):
                self._set_address(name, value.address)
            elif name not in self.tensors.on_host:
                array = self.tensors.packed(name, value)
                if name not in self.input_buffers:
                    self.input_buffers[name] = self.gpu.allocate(array.nbytes), array
                buffer = self.input_buffers[name][0]
                self.input_buffers[name] = buffer, array  # alive until it is uploaded
                buffer.copy_from(array, array.nbytes, stream)
                self._set_address(name, buffer.address)

    def _checked(self, name: str, value: Tensor | DeviceTensor) -> Tensor | DeviceTensor:
        """Convert an input to the engine's type; refuse one in the wrong memory."""
        if isinstance(value, Tensor):
            return self.tensors.converted(name, value)
        if name in self.tensors.on_host:
            problem = f"the values of the input {name} decide shapes"
            raise StageError(problem, "pass it as an array in host memory")
        return value

    def _place_outputs(self) -> None:
        """Give the outputs memory of this inference."""
        for name, shape in self._output_shapes.items():
            if name not in self.results:
                stored = packed_shape(shape, self.tensors.layouts[name])
                itemsize = self.tensors.types[name][1].itemsize
                size_bytes = int(np.prod(stored, dtype=np.int64)) * itemsize
                self.results[name] = EngineOutput(self.gpu.allocate(size_bytes), shape)
            self._set_address(name, self.results[name].buffer.address)

    def _value_shaped(self) -> dict[str, EngineOutput]:
        """Collect the outputs whose shapes depend on values."""
        outputs = self.results.items()
        return {name: output for name, output in outputs if isinstance(output, ValueShapedOutput)}

    def _follow(self, stream: Stream) -> None:
        """Let a stream wait for an inference still running on another one."""
        if self._finished is not None and self._running_on not in (None, stream.number):
            stream.wait_for(self._finished)
            self._running_on = None

    def _set_shapes(
        self, inputs: Mapping[str, Tensor | DeviceTensor], profile: int | None, messages: Messages
    ) -> None:
        """Set profile, shapes and host inputs, unless the context has them."""
        shapes = (profile, {name: value.shape for name, value in inputs.items()})
        if shapes == self._prepared and not self.tensors.on_host:
            return
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
            if not self._context.set_output_allocator(name, output.allocator):
                raise StageError(f"the engine does not take memory for {name} while it runs")
        self._prepared = shapes

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
        self._host: dict[str, Array] = {}  # keeps inputs in host memory alive
        self._addresses: dict[str, int] = {}  # those that the context has
        self._output_shapes: dict[str, Shape] = {}  # without those of value-dependent shape
        self.input_buffers: dict[str, tuple[Buffer, Array]] = {}  # with their values
        self.results: dict[str, EngineOutput] = {}
