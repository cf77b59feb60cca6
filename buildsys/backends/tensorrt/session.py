"""A TensorRT engine on the first GPU: loading, inspection, contenders, closing.

Each inference in flight has its own execution session, stream and buffers.

Source: TensorRT developer guide, "Enqueueing", "CUDA Graphs", "Multi-Streaming".
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.backends.cuda_device import CudaGraph, Device, HostBuffer
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
from buildsys.backends.tensorrt.library import TensorRTLibrary, dtype_words, load_failure, log_of
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor

_STAND_INS = {"int64": "int32", "float64": "float32"}


class TensorRtSession(Inference):
    """A loaded engine with one execution context, on the first GPU."""

    _contenders = ExitStack()  # the resources of the present ones
    _stack = ExitStack()  # what outlives the context
    _runtime: Any = None

    @classmethod
    def load(
        cls,
        library: TensorRTLibrary,
        engine_file: Path,
        kernels: Path | None = None,
        *,
        host_code: bool = False,
    ) -> "TensorRtSession":
        """Load an engine; ``kernels`` is TensorRT-RTX's cache of compiled kernels.

        ``host_code`` allows code for the processor, which version-compatible engines contain.
        """
        log, gpu = log_of(library), Device(0)
        try:
            with gpu.current(), log.collected() as messages, ExitStack() as stack:
                runtime = library.trt.Runtime(log.logger)
                runtime.engine_host_code_allowed = host_code
                engine = runtime.deserialize_cuda_engine(engine_file.read_bytes())
                if engine is None:
                    raise load_failure(engine_file.name, messages, library.release)
                settings = stack.enter_context(
                    version_adapter.runtime_cache(library, engine, kernels)
                )
                arguments = () if settings is None else (settings,)
                context = engine.create_execution_context(*arguments)
                if context is None:
                    raise load_failure(engine_file.name, messages, library.release)
                session = cls(library, gpu, engine, context)
                session._runtime, session._stack = runtime, stack.pop_all()
                return session
        except BaseException:
            gpu.close()
            raise

    def duplicate(self) -> "TensorRtSession":
        """Make a session of this engine with its own context, stream and buffers.

        It must be closed before this one.
        """
        gpu = Device(0)
        with gpu.current(), self.log.collected() as messages:
            context = self._engine.create_execution_context()
            # choosing a profile that another context uses crashes TensorRT 8.6.0
            if context is not None and context.active_optimization_profile >= 0:
                session = TensorRtSession(self._library, gpu, self._engine, context)
                session.cuda_graphs = self.cuda_graphs
                return session
            del context
        gpu.close()
        reason = messages.error_text("an optimization profile serves one at a time")
        problem = f"the engine runs one inference at a time: {reason}"
        raise StageError(problem, "set bench.in_flight: 1")

    def close(self) -> None:
        """Free the contenders, the context, the engine and the device memory, in this order."""
        if self._engine is None:
            return
        with self.gpu.current():
            self._contenders.close()
            if self._finished is not None:
                self._finished.wait()
            self._context = None
            self._stack.close()
            self._engine = self._runtime = None
        self._reset_buffers()
        self.gpu.close()

    @property
    def stand_in_types(self) -> dict[str, str]:
        """Types that this TensorRT lacks, and those of its parser instead."""
        words = dtype_words(self._library).values()
        return {lacked: dtype for lacked, dtype in _STAND_INS.items() if lacked not in words}

    def memory_figures(self) -> Figures:
        """Return a context's memory in addition to the weights."""
        needed_bytes = version_adapter.device_memory_bytes(self._library, self._engine)
        return {"device_memory_bytes": needed_bytes}

    def describe(self, precision: str) -> Figures:
        """Read layers with their precision, port formats and memory needs.

        ``precision`` is the requested precision of the engine.
        """
        inspector = self._engine.create_engine_inspector()
        times = self._layer_times()
        # without a context whose shapes are set, TensorRT 8.6 does not know the formats
        inspector.execution_context = self._context
        text = inspector.get_engine_information(self._library.trt.LayerInformationFormat.JSON)
        return {
            "formats": {
                name: port.layout for name, port in self.ports.items() if port.layout != LINEAR
            },
            **self.memory_figures(),
            **precision_facts(read_layers(text, precision), times, precision),
        }

    def contenders(self, inputs: Mapping[str, Tensor], timing: GpuTiming) -> dict[str, Contender]:
        """Make contenders by name; they invalidate earlier ones."""
        contenders: dict[str, Contender] = {}
        with self.gpu.current(), ExitStack() as stack:
            self._contenders.close()
            # the session itself is the first: a second context cannot have its profile if a
            # TensorRT 8.6 engine was built without profile sharing
            sessions = [self]
            self.bind(inputs)()  # includes one-time work of a context
            for _ in range(1, timing.in_flight):
                sessions.append(self.duplicate())
                stack.callback(sessions[-1].close)
                sessions[-1].bind(inputs)()
            for graph in dict.fromkeys(timing.cuda_graph):
                slots = [
                    Slot(session.gpu.main_stream, session._launch(timing, stack, graph=graph))
                    for session in sessions
                ]
                contender = GpuContender(self.gpu, slots, blocking=timing.wait == "block")
                stack.callback(contender.close)
                contenders[ENGINE_CUDA_GRAPH if graph else ENGINE] = contender
            self._contenders = stack.pop_all()
        return contenders

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
            port = self.ports[name]
            values = np.zeros(span["opt"], port.stored)
            if "opt_values" in span:
                values = np.array(span["opt_values"], values.dtype).reshape(span["opt"])
            elif self._engine.is_shape_inference_io(name):  # zeros there crash TensorRT 8.6
                return {}
            inputs[name] = Tensor(values, port.dtype)
        with suppress(StageError):
            call = self.bind(inputs)
            call()
            self._timer = Profiler()  # must outlive the context
            self._context.profiler = self._timer
            call()
            return times
        return {}

    def _launch(self, timing: GpuTiming, stack: ExitStack, *, graph: bool) -> Launch:
        """Make a call that launches one inference with its copies."""
        stream = self.gpu.main_stream

        def enqueue() -> None:
            if not self._context.execute_async_v3(int(stream.handle)):
                raise StageError(self.log.messages.error_text("the engine did not run"))

        steps: list[Callable[[], object]] = [enqueue]
        if graph:
            try:
                captured = CudaGraph(stream, enqueue)
            except StageError as failure:
                text = f"the engine cannot run as a CUDA graph: {failure.problem}"
                raise StageError(text, "set bench.cuda_graph: false") from failure
            stack.callback(captured.release)
            steps = [partial(captured.launch, stream)]
        sources = self.input_buffers.values() if timing.transfers in ("in", "both") else ()
        targets = self.results.values() if timing.transfers in ("out", "both") else ()
        for buffer, values in sources:
            host = HostBuffer(values.nbytes)
            stack.callback(host.release)
            host.fill(values)
            steps.insert(0, partial(buffer.copy_from, host.address, host.size_bytes, stream))
        for output in targets:
            host = HostBuffer(output.buffer.size_bytes)
            stack.callback(host.release)
            steps.append(partial(output.buffer.copy_to, host.address, host.size_bytes, stream))

        def launch() -> None:
            for step in steps:
                step()

        return steps[0] if len(steps) == 1 else launch
