"""Contenders of a TensorRT engine: inferences in flight, CUDA graphs, transfers.

Each inference in flight has its own execution session, stream and buffers.

Source: TensorRT developer guide, "Enqueueing", "CUDA Graphs", "Multi-Streaming".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial

from buildsys.backends.cuda.device import CudaGraph, Device, HostBuffer, Resource
from buildsys.backends.measurement import (
    ENGINE,
    ENGINE_CUDA_GRAPH,
    Contender,
    GpuContender,
    GpuTiming,
    Launch,
    Slot,
)
from buildsys.backends.tensorrt.call_graphs import CallGraphs
from buildsys.backends.tensorrt.log import Scope
from buildsys.backends.tensorrt.session import TensorRtSession
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor


class TimedSession(TensorRtSession):
    """A loaded engine with contenders for benchmarks."""

    _timed = ExitStack()  # the resources of the present contenders

    def contenders(self, inputs: Mapping[str, Tensor], timing: GpuTiming) -> dict[str, Contender]:
        """Return contenders by name; they invalidate earlier ones.

        Raises: StageError: the engine cannot be captured, or allows fewer inferences in flight.
        """
        self._timed.close()
        found: dict[str, Contender] = {}
        with ExitStack() as stack:
            # the session itself is the first: a second context cannot have its profile if a
            # TensorRT 8.6 engine was built without profile sharing
            sessions = [self]
            self.bind(inputs)()  # includes one-time work of a context
            while len(sessions) < timing.in_flight:
                try:
                    sessions.append(self.duplicate())
                except StageError as failure:
                    raise StageError(
                        f"there cannot be {timing.in_flight} inferences in flight:"
                        f" {failure.problem}",
                        failure.hint or "set bench.in_flight: 1",
                    ) from failure
                stack.callback(sessions[-1].close)
                sessions[-1].bind(inputs)()
            for graph in dict.fromkeys(timing.cuda_graph):
                slots = []
                for session in sessions:
                    with session.gpu.current():
                        launch = session._launch(timing, stack, graph=graph)
                    slots.append(Slot(session.gpu.main_stream, launch))
                blocking = timing.wait == "block"
                contender = GpuContender(
                    self.gpu, slots, blocking=blocking, explained=self._explained
                )
                stack.callback(contender.close)
                found[ENGINE_CUDA_GRAPH if graph else ENGINE] = contender
            self._timed = stack.pop_all()
        return found

    def close(self) -> None:
        """Free the contenders and the session."""
        self._timed.close()
        super().close()

    def duplicate(self) -> TimedSession:
        """Return a session of this engine with its own context, stream and buffers.

        It must be closed before this one.
        Raises: StageError: there is no memory for another context, or no profile.
        """
        other = copy(self)
        other.gpu, other._stack, other._timed = Device(0), ExitStack(), ExitStack()
        other._scope = Scope(other.gpu, other.log)
        other.graphs = CallGraphs(other.gpu, enabled=self.graphs.enabled)
        other._finished = other._running_on = None
        other._reset_buffers()
        with other.gpu.current(), self.log.collected() as messages:
            other._context = self._engine.create_execution_context()
        if other._context is None:
            other.gpu.close()
            text = messages.error_text("the engine has no other execution context")
            raise StageError(text, "set bench.in_flight: 1")
        # choosing a profile that another context uses crashes TensorRT 8.6.0
        if other._context.active_optimization_profile < 0:
            other.close()
            text = "an optimization profile of this engine serves one inference at a time"
            raise StageError(text, "set bench.in_flight: 1")
        return other

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(int(self.gpu.main_stream.handle)):
            raise StageError("the engine did not run")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Put TensorRT's log into failures inside the block."""
        with self.log.collected() as messages:
            try:
                yield
            except StageError as failure:
                raise StageError(messages.error_text(failure.problem), failure.hint) from failure

    def _launch(self, timing: GpuTiming, stack: ExitStack, *, graph: bool) -> Launch:
        """Return a call to launch one inference with its copies."""
        stream = self.gpu.main_stream
        compute: Launch = self._enqueue
        if graph:
            try:
                with self._explained():
                    captured = CudaGraph(stream, self._enqueue)
            except StageError as failure:
                text = f"the engine cannot run as a CUDA graph: {failure.problem}"
                raise StageError(text, "set bench.cuda_graph: false") from failure
            stack.callback(self._release, captured)
            compute = partial(captured.launch, stream)
        copies_in: list[Callable[[], None]] = []
        copies_out: list[Callable[[], None]] = []
        if timing.copies_in:
            for buffer, values in self.input_buffers.values():
                source = HostBuffer(values.nbytes)
                stack.callback(self._release, source)
                source.fill(values)
                copies_in.append(
                    partial(buffer.copy_from, source.address, source.size_bytes, stream)
                )
        if timing.copies_out:
            for buffer in (output.buffer for output in self.results.values()):
                target = HostBuffer(buffer.size_bytes)
                stack.callback(self._release, target)
                copies_out.append(
                    partial(buffer.copy_to, target.address, target.size_bytes, stream)
                )
        if not copies_in and not copies_out:
            return compute

        def launch() -> None:
            for copy_in in copies_in:
                copy_in()
            compute()
            for copy_out in copies_out:
                copy_out()

        return launch

    def _release(self, resource: Resource) -> None:
        with self.gpu.current():
            resource.release()
