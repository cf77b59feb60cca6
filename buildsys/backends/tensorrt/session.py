"""A TensorRT engine on the first GPU: loading, inspection, contenders, closing.

Each inference in flight has its own execution session, stream and buffers.

Source: TensorRT developer guide, "Enqueueing", "CUDA Graphs", "Multi-Streaming".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from functools import partial
from pathlib import Path

import numpy as np

from buildsys.backends.cuda_device import CudaGraph, Device, HostBuffer, Resource
from buildsys.backends.interface import Figures
from buildsys.backends.measurement import (
    ENGINE,
    ENGINE_CUDA_GRAPH,
    Contender,
    GpuContender,
    GpuTiming,
    Launch,
    Slot,
)
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.engine_tensors import LINEAR
from buildsys.backends.tensorrt.inference import Inference
from buildsys.backends.tensorrt.inspector import precision_facts, read_layers
from buildsys.backends.tensorrt.library import DTYPES, TensorRTLibrary, load_failure, log_of
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor

_STAND_INS = {"int64": "int32", "float64": "float32"}


class TensorRtSession(Inference):
    """A loaded engine with one execution context, on the first GPU."""

    _contenders = ExitStack()  # the resources of the present ones

    def __init__(
        self,
        library: TensorRTLibrary,
        engine_file: Path,
        kernels: Path | None = None,
        *,
        host_code: bool = False,
    ) -> None:
        """Load an engine; ``kernels`` is TensorRT-RTX's cache of compiled kernels.

        ``host_code`` allows code for the processor, which version-compatible engines contain.
        """
        log, gpu = log_of(library), Device(0)
        self._stack = ExitStack()
        try:
            with gpu.current(), log.collected() as messages:
                self._runtime = library.trt.Runtime(log.logger)
                self._runtime.engine_host_code_allowed = host_code
                engine = self._runtime.deserialize_cuda_engine(engine_file.read_bytes())
                if engine is None:
                    raise load_failure(engine_file.name, messages, library.release)
                settings = self._stack.enter_context(
                    version_adapter.runtime_cache(library, engine, kernels)
                )
                arguments = () if settings is None else (settings,)
                context = engine.create_execution_context(*arguments)
                if context is None:
                    raise load_failure(engine_file.name, messages, library.release)
                super().__init__(library, gpu, engine, context)
        except BaseException:
            gpu.close()
            raise

    @property
    def stand_in_types(self) -> dict[str, str]:
        """Types that this TensorRT lacks, and those of its parser instead."""
        words = DTYPES.words(self._library).values()
        return {lacked: dtype for lacked, dtype in _STAND_INS.items() if lacked not in words}

    def describe(self, precision: str) -> Figures:
        """Read layers with their precision, tensor formats and memory needs.

        ``precision`` is the requested precision of the engine.
        """
        inspector = self._engine.create_engine_inspector()
        times = self._layer_times()
        # without a context whose shapes are set, TensorRT 8.6 does not know the formats
        inspector.execution_context = self._context
        text = inspector.get_engine_information(self._library.trt.LayerInformationFormat.JSON)
        return {
            "formats": {
                name: layout for name, layout in self.tensors.layouts.items() if layout != LINEAR
            },
            **self.memory_figures(),
            **precision_facts(read_layers(text, precision), times, precision),
        }

    def memory_figures(self) -> Figures:
        """Return a context's memory in addition to the weights."""
        return {
            "device_memory_bytes": version_adapter.device_memory_bytes(self._library, self._engine)
        }

    def contenders(self, inputs: Mapping[str, Tensor], timing: GpuTiming) -> dict[str, Contender]:
        """Make contenders by name; they invalidate earlier ones."""
        self._contenders.close()
        contenders: dict[str, Contender] = {}
        with ExitStack() as stack:
            # the session itself is the first: a second context cannot have its profile if a
            # TensorRT 8.6 engine was built without profile sharing
            sessions = [self]
            self.bind(inputs)()  # includes one-time work of a context
            for _ in range(1, timing.in_flight):
                sessions.append(self.duplicate())
                stack.callback(sessions[-1].close)
                sessions[-1].bind(inputs)()
            for graph in dict.fromkeys(timing.cuda_graph):
                slots = []
                for session in sessions:
                    with session.gpu.current():
                        launch = session._launch(timing, stack, graph=graph)
                    slots.append(Slot(session.gpu.main_stream, launch))
                contender = GpuContender(
                    self.gpu, slots, blocking=timing.wait == "block", explained=self._explained
                )
                stack.callback(contender.close)
                contenders[ENGINE_CUDA_GRAPH if graph else ENGINE] = contender
            self._contenders = stack.pop_all()
        return contenders

    def duplicate(self) -> TensorRtSession:
        """Make a session of this engine with its own context, stream and buffers.

        It must be closed before this one.
        """
        other = copy(self)
        other.gpu, other._stack, other._contenders = Device(0), ExitStack(), ExitStack()
        other._finished = other._running_on = other.graph = None
        other._reset_buffers()
        with other.gpu.current(), self.log.collected() as messages:
            other._context = self._engine.create_execution_context()
        # choosing a profile that another context uses crashes TensorRT 8.6.0
        if other._context is None or other._context.active_optimization_profile < 0:
            other.close()
            reason = messages.error_text("an optimization profile serves one at a time")
            problem = f"the engine runs one inference at a time: {reason}"
            raise StageError(problem, "set bench.in_flight: 1")
        return other

    def close(self) -> None:
        """Free the contenders, the context, the engine and the device memory, in this order."""
        self._contenders.close()
        if self._engine is None:
            return
        with self.gpu.current():
            if self._finished is not None:
                self._finished.wait()
            self._context = None
            self._stack.close()
            self._engine = self._runtime = None
        self._reset_buffers()
        self.gpu.close()

    def _layer_times(self) -> dict[str, float]:
        """Measure the milliseconds per layer on zeros; {} if they fail.

        Inputs with opt values have those, as they decide shapes.
        """
        inputs = {}
        times: dict[str, float] = {}

        class Profiler(self._library.trt.IProfiler):  # type: ignore[misc,name-defined]
            def report_layer_time(self, layer_name: str, ms: float) -> None:
                times[layer_name] = times.get(layer_name, 0.0) + ms

        for name, span in self.profiles[0].items():
            dtype, stored = self.tensors.types[name]
            values = np.zeros(span["opt"], stored)
            if "opt_values" in span:
                values = np.array(span["opt_values"], values.dtype).reshape(span["opt"])
            elif self._engine.is_shape_inference_io(name):  # zeros there crash TensorRT 8.6
                return {}
            inputs[name] = Tensor(values, dtype)
        with suppress(StageError):
            call = self.bind(inputs)
            call()
            self._timer = Profiler()  # must outlive the context
            self._context.profiler = self._timer
            call()
            return times
        return {}

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Put TensorRT's log into failures inside the block."""
        with self.log.collected() as messages:
            try:
                yield
            except StageError as failure:
                raise StageError(messages.error_text(failure.problem), failure.hint) from failure

    def _launch(self, timing: GpuTiming, stack: ExitStack, *, graph: bool) -> Launch:
        """Make a call that launches one inference with its copies."""
        stream = self.gpu.main_stream

        def enqueue() -> None:
            if not self._context.execute_async_v3(int(stream.handle)):
                raise StageError("the engine did not run")

        steps: list[Callable[[], object]] = [enqueue]
        if graph:
            try:
                with self._explained():
                    captured = CudaGraph(stream, enqueue)
            except StageError as failure:
                text = f"the engine cannot run as a CUDA graph: {failure.problem}"
                raise StageError(text, "set bench.cuda_graph: false") from failure
            stack.callback(self._release, captured)
            steps = [partial(captured.launch, stream)]
        for buffer, values in (
            self.input_buffers.values() if timing.transfers in ("in", "both") else ()
        ):
            source = self._host_buffer(values.nbytes, stack)
            source.fill(values)
            steps.insert(0, partial(buffer.copy_from, source.address, source.size_bytes, stream))
        for output in self.results.values() if timing.transfers in ("out", "both") else ():
            target = self._host_buffer(output.buffer.size_bytes, stack)
            steps.append(partial(output.buffer.copy_to, target.address, target.size_bytes, stream))
        if len(steps) == 1:
            return steps[0]

        def launch() -> None:
            for step in steps:
                step()

        return launch

    def _host_buffer(self, size_bytes: int, stack: ExitStack) -> HostBuffer:
        buffer = HostBuffer(size_bytes)
        stack.callback(self._release, buffer)
        return buffer

    def _release(self, resource: Resource) -> None:
        with self.gpu.current():
            resource.release()
