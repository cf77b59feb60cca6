"""Inference of one execution context: shapes, memory, streams.

The shapes and memory of a call stay for the next one with the same shapes.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from buildsys.backends.cuda_device import Buffer, CudaGraph, Device, Event, Stream
from buildsys.backends.interface import Allocate, DeviceTensor, Run
from buildsys.backends.tensorrt.engine_tensors import (
    EngineOutput,
    Shape,
    choose_profile,
    packed,
    packed_shape,
    read_ports,
    read_profiles,
    unpacked,
    value_shaped_output,
)
from buildsys.backends.tensorrt.library import Messages, TensorRTLibrary, log_of
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array, Tensor

_CALLS_BEFORE_GRAPH = 4  # on the same memory; doubled by each graph, as shapes may ever change


class Inference:
    """An engine with one execution context, its stream and its buffers."""

    # a graph saves the launches of all kernels, which take longer than many networks compute
    cuda_graphs = False
    graph: CudaGraph | None = None  # captured with the present memory
    _calls_before_graph = _CALLS_BEFORE_GRAPH
    _prepared: tuple[int | None, dict[str, Shape]] | None  # profile, shapes of inputs
    _stream: Stream | None = None  # the last caller's
    # the last inference on a caller's stream
    _finished: Event | None = None
    _running_on: int | None = None

    def __init__(self, library: TensorRTLibrary, gpu: Device, engine: Any, context: Any) -> None:
        """Take over an engine and a context of it."""
        self.log, self.gpu = log_of(library), gpu
        self._library, self._engine, self._context = library, engine, context
        ports = read_ports(library, engine)
        self.ports = {port.name: port for port in ports}
        self.inputs = tuple(port for port in ports if port.is_input)
        self.outputs = tuple(port for port in ports if not port.is_input)
        self._takes_host_inputs = any(port.on_host for port in self.inputs)
        names = [port.name for port in self.inputs]
        self.profiles = read_profiles(library, engine, names)
        self._reset_buffers()

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
            for port in self.outputs:
                output = self.results[port.name]
                if output.allocator:
                    stream.synchronize()  # its shape is known now
                target = np.empty(packed_shape(output.shape, port.layout), port.stored)
                output.buffer.copy_to(target, target.nbytes, stream)
                results[port.name] = target
            stream.synchronize()
        return {
            port.name: Tensor(
                unpacked(results[port.name], port.layout, self.results[port.name].shape), port.dtype
            )
            for port in self.outputs
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

        Inputs whose values decide shapes must be in host memory.
        """
        queue = self.gpu.main_stream
        if stream is not None:
            if self._stream is None or self._stream.number != stream:
                self._stream = Stream(stream)
            queue = self._stream
        for port in self.ports.values():
            port.check_linear()
        with self.gpu.current(), self.log.collected() as messages:
            self._prepare(inputs, profile, queue, messages)
            outputs = {
                name: allocate(name, self.ports[name].dtype, shape)
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
                port = self.ports[name]
                outputs[name] = allocate(name, port.dtype, output.shape)
                size_bytes = port.size_bytes(output.shape)
                output.buffer.copy_on_device(outputs[name].address, size_bytes, queue)
            if stream is None:
                queue.synchronize()
            else:
                self._finished = self._finished or self.gpu.new_event()
                self._finished.record(queue)
                self._running_on = stream
        return {port.name: outputs[port.name] for port in self.outputs}

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
        if self._finished is not None and self._running_on not in (None, stream.number):
            stream.wait_for(self._finished)  # it may still run on another stream
            self._running_on = None
        if missing := [port.name for port in self.inputs if port.name not in inputs]:
            problem = f"the engine's input {', '.join(missing)} is not given"
            raise StageError(problem, "give every input of the engine")
        values = {port.name: port.converted(inputs[port.name]) for port in self.inputs}
        self._set_shapes(values, profile, messages)
        for port in self.inputs:
            name, value = port.name, values[port.name]
            if isinstance(value, DeviceTensor):
                self._set_address(name, value.address)
            elif not port.on_host:
                array = np.asarray(packed(value.array, port.layout), order="C")
                if name not in self.input_buffers:
                    self.input_buffers[name] = self.gpu.allocate(array.nbytes), array
                buffer = self.input_buffers[name][0]
                self.input_buffers[name] = buffer, array  # alive until it is uploaded
                buffer.copy_from(array, array.nbytes, stream)
                self._set_address(name, buffer.address)

    def _set_shapes(
        self, inputs: Mapping[str, Tensor | DeviceTensor], profile: int | None, messages: Messages
    ) -> None:
        """Set profile, shapes and host inputs, unless the context has them."""
        shapes = (profile, {name: value.shape for name, value in inputs.items()})
        if shapes == self._prepared and not self._takes_host_inputs:
            return
        self._free_buffers()
        chosen = choose_profile(self.profiles, inputs, profile)
        if chosen != self._context.active_optimization_profile:
            stream = self.gpu.main_stream
            is_set = self._context.set_optimization_profile_async(chosen, int(stream.handle))
            _require(f"the optimization profile {chosen}", is_set, messages)
            stream.synchronize()
        for name, value in inputs.items():
            is_set = self._context.set_input_shape(name, value.shape)
            _require(f"the shape {list(value.shape)} of {name}", is_set, messages)
            if self.ports[name].on_host and isinstance(value, Tensor):
                self._host[name] = np.array(value.array, order="C")
                self._set_address(name, self._host[name].ctypes.data)
        unknown = self._context.infer_shapes()
        _require(f"inputs without the values or shapes of {unknown}", not unknown, messages)
        for port in self.outputs:
            name, shape = port.name, tuple(self._context.get_tensor_shape(port.name))
            if all(size >= 0 for size in shape):
                self._output_shapes[name] = shape
                continue
            output = value_shaped_output(self._library, self.gpu, port.stored.itemsize)
            self.results[name] = output
            is_set = self._context.set_output_allocator(name, output.allocator)
            _require(f"an allocator for {name}", is_set, messages)
        self._prepared = shapes

    def _place_outputs(self) -> None:
        """Give the outputs memory of this session."""
        for name, shape in self._output_shapes.items():
            if name not in self.results:
                buffer = self.gpu.allocate(self.ports[name].size_bytes(shape))
                self.results[name] = EngineOutput(buffer, shape)
            self._set_address(name, self.results[name].buffer.address)

    def _value_shaped(self) -> dict[str, EngineOutput]:
        """Collect the outputs whose shapes depend on values."""
        return {name: output for name, output in self.results.items() if output.allocator}

    def _set_address(self, name: str, address: int) -> None:
        if self._addresses.get(name) == address:
            return
        self._forget_graph()
        is_set = self._context.set_tensor_address(name, address)
        _require(f"the memory for {name}", is_set, self.log.messages)
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


def _require(what: str, is_taken: bool, messages: Messages) -> None:
    if not is_taken:
        reason = messages.error_text("TensorRT gives no reason")
        raise StageError(f"the engine does not take {what}: {reason}")
