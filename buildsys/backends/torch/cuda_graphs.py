"""Programs captured as CUDA graphs: one per shape, with inputs and outputs in fixed memory."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from buildsys.backends.captured_program import named_outputs, one_sentence, ordered_inputs
from buildsys.backends.cuda_device import Device, Stream
from buildsys.backends.declared_ports import check_inputs, ports_of
from buildsys.backends.interface import Allocate, DeviceTensor, Figures, Profiles, Run
from buildsys.backends.layer_figures import profiled_runs, slowest
from buildsys.backends.measurement import (
    ENGINE,
    Contender,
    GpuContender,
    GpuTiming,
    Samples,
    Slot,
)
from buildsys.backends.torch.gpu_programs import (
    GpuProgram,
    compiler_cache,
    float32_arithmetic,
    own_workspaces,
)
from buildsys.onnx_graphs.tensors import Tensor

_MOST_GRAPHS = 16  # shapes whose graphs are kept, of those used last
_WARM_UP_CALLS = 3  # before a capture
_HINT = (
    "it copies values to the host, or has outputs whose sizes depend on values: the log has the"
    " complete message; another backend may take the network"
)
Shapes = tuple[tuple[int, ...], ...]


@dataclass
class _ShapeGraph:
    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    graph: torch.cuda.CUDAGraph


class CudaGraphSession:
    """A loaded program with a stream and graphs of its own."""

    profiles: Profiles = ()

    def __init__(self, program: GpuProgram) -> None:
        """Capture the graph of the sizes ``opt``."""
        interface = program.interface
        self._program = program
        self._dims: Mapping[str, Mapping[str, int]] = interface["dims"]
        self.inputs, self.outputs = ports_of(interface["inputs"]), ports_of(interface["outputs"])
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._memory = torch.cuda.graph_pool_handle()  # shared by all graphs: one runs at a time
        self._graphs: OrderedDict[Shapes, _ShapeGraph] = OrderedDict()
        self._finished: Any = None  # the last call on a caller's stream
        self._stack = ExitStack()  # frees the contenders
        with self._active(self._stream):
            self._graph_of(program.opt)

    @property
    def stream(self) -> int:
        """The CUDA stream of calls without another one."""
        return int(self._stream.cuda_stream)

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name."""
        with self._active(self._stream):
            captured = self._filled(inputs)
            captured.graph.replay()
            values = [output.cpu() for output in captured.outputs]
        return named_outputs(self.outputs, values)

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Upload the inputs; return a call to compute without copies."""
        with self._active(self._stream):
            captured = self._filled(inputs)
        self._stream.synchronize()

        def run() -> None:
            with self._active(self._stream):
                captured.graph.replay()
            self._stream.synchronize()

        return run

    def enqueue(
        self,
        inputs: Mapping[str, Tensor | DeviceTensor],
        allocate: Allocate,
        stream: int | None = None,
        profile: int | None = None,
    ) -> dict[str, DeviceTensor]:
        """Put an inference on a stream; return its outputs."""
        queue: Any = self._stream
        if stream is not None:
            queue = torch.cuda.ExternalStream(stream)  # type: ignore[no-untyped-call]
        results = {}
        with self._active(queue):
            captured = self._filled(inputs)
            captured.graph.replay()
            for port, output in zip(self.outputs, captured.outputs, strict=True):
                memory = allocate(port.name, port.dtype, tuple(output.shape))
                _on_device(memory).copy_(output)
                results[port.name] = memory
            if stream is None:
                queue.synchronize()
            else:
                self._finished = queue.record_event()
        return results

    def contenders(self, inputs: Mapping[str, Tensor], timing: GpuTiming) -> dict[str, Contender]:
        """Make a contender and close all earlier contenders."""
        self._stack.close()
        gpu = Device(0)  # shares PyTorch's context
        self._stack.callback(gpu.close)
        sessions = [self, *(self.duplicate() for _ in range(1, timing.in_flight))]
        slots = [
            Slot(Stream(session.stream), session._step(inputs, timing.transfers))
            for session in sessions
        ]
        torch.cuda.synchronize()
        contender = _TorchContender(gpu, slots, blocking=timing.wait == "block")
        self._stack.callback(contender.close)
        return {ENGINE: contender}

    def memory_figures(self) -> Figures:
        """Return none: PyTorch keeps the memory of all sessions together."""
        return {}

    def duplicate(self) -> "CudaGraphSession":
        """Make a session with a stream and graphs of its own, on the same constants."""
        return CudaGraphSession(self._program)

    def close(self) -> None:
        """Free the graphs and contenders."""
        with suppress(RuntimeError):  # the call that failed has raised it
            self._stream.synchronize()
        self._stack.close()
        self._graphs.clear()

    def kernel_times(self, inputs: Mapping[str, Tensor]) -> list[Figures]:
        """Return the slowest kernels with their times, [] if CUDA's profiler is not available."""
        run, runs = self.bind(inputs), 0
        with _profiler() as profile:
            for _ in profiled_runs():
                run()
                runs += 1
        times = {
            event.key: event.self_device_time_total / 1000 / runs
            for event in profile.key_averages()
            if event.self_device_time_total
        }
        return [{"name": name, **figures} for name, figures in slowest(times)]

    def kernels(self) -> list[str]:
        """Return the names of the kernels of the sizes ``opt``, [] without CUDA's profiler."""
        captured = next(iter(self._graphs.values()))
        with self._active(self._stream), _profiler() as profile:
            captured.graph.replay()
            torch.cuda.synchronize()
        return [name for event in profile.key_averages() for name in [event.key] * event.count]

    @contextmanager
    def _active(self, stream: Any) -> Iterator[None]:
        """Make ``stream`` PyTorch's current one, after a call that still runs on another."""
        with torch.cuda.stream(stream), torch.inference_mode():
            if self._finished is not None:
                stream.wait_event(self._finished)
                self._finished = None
            yield

    def _filled(self, inputs: Mapping[str, Tensor | DeviceTensor]) -> _ShapeGraph:
        """Return the graph of the inputs' shapes, with the inputs in its memory."""
        check_inputs(self.inputs, self._dims, inputs)
        captured = self._graph_of(tuple(tuple(inputs[port.name].shape) for port in self.inputs))
        for port, memory in zip(self.inputs, captured.inputs, strict=True):
            value = inputs[port.name]
            if isinstance(value, DeviceTensor):
                memory.copy_(_on_device(value))
            else:
                (tensor,) = ordered_inputs((port,), {port.name: value})
                memory.copy_(tensor)
        return captured

    def _graph_of(self, shapes: Shapes) -> _ShapeGraph:
        if shapes in self._graphs:
            self._graphs.move_to_end(shapes)
            return self._graphs[shapes]
        what = f"PyTorch cannot capture the network as a CUDA graph, for inputs {[*shapes]}"
        inputs = [
            torch.zeros(shape, dtype=getattr(torch, port.dtype), device="cuda")
            for port, shape in zip(self.inputs, shapes, strict=True)
        ]
        tf32 = float32_arithmetic(tf32=self._program.interface["tf32"])
        with one_sentence(what, _HINT), compiler_cache(), tf32:
            for _ in range(_WARM_UP_CALLS):
                self._program(inputs)
            torch.cuda.synchronize()
            graph: Any = torch.cuda.CUDAGraph()
            with (
                own_workspaces(),
                torch.cuda.graph(
                    graph, self._memory, self._stream, capture_error_mode="thread_local"
                ),
            ):
                outputs = self._program(inputs)
        self._graphs[shapes] = _ShapeGraph(inputs, outputs, graph)
        if len(self._graphs) > _MOST_GRAPHS:
            torch.cuda.synchronize()  # the oldest may still run
            self._graphs.popitem(last=False)
        return self._graphs[shapes]

    def _step(self, inputs: Mapping[str, Tensor], transfers: str) -> Callable[[], None]:
        """Make a call that launches one inference with its copies."""
        with self._active(self._stream):
            captured = self._filled(inputs)
        steps: list[Callable[[], object]] = [captured.graph.replay]
        for memory in captured.inputs if transfers in ("in", "both") else ():
            host = memory.cpu().pin_memory()
            steps.insert(0, partial(memory.copy_, host, non_blocking=True))
        for memory in captured.outputs if transfers in ("out", "both") else ():
            host = torch.empty_like(memory, device="cpu", pin_memory=True)
            steps.append(partial(host.copy_, memory, non_blocking=True))

        def launch() -> None:
            torch.cuda.set_stream(self._stream)
            for step in steps:
                step()

        return launch


class _TorchContender(GpuContender):
    """Enters PyTorch's contexts once per block: per launch they take as long as a small network."""

    def block(self, at_least_s: float, at_least_runs: int) -> Samples:
        """Run inferences without a break; leave the current stream as it was."""
        with torch.cuda.stream(torch.cuda.current_stream()), torch.inference_mode():
            return super().block(at_least_s, at_least_runs)


def _profiler() -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])


class _Memory:
    def __init__(self, interface: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = {**interface, "version": 3}


def _on_device(array: DeviceTensor) -> torch.Tensor:
    """View memory of a GPU as a tensor."""
    dtype: torch.dtype = getattr(torch, array.dtype)

    size_bytes = dtype.itemsize * torch.Size(array.shape).numel()
    memory = _Memory({"shape": (size_bytes,), "typestr": "|u1", "data": (array.address, False)})
    if 0 in array.shape:
        return torch.empty(array.shape, dtype=dtype, device="cuda")
    return torch.as_tensor(memory, device="cuda").view(dtype).reshape(array.shape)
