"""Contenders of a TensorRT engine: inferences in flight, CUDA graphs, transfers.

Each inference in flight has its own execution session, stream and buffers.

Source: TensorRT developer guide, "Enqueueing", "CUDA Graphs", "Multi-Streaming".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

from buildsys.backends.cuda.device import Device, HostBuffer, Resource, Stream
from buildsys.backends.interface import Run
from buildsys.backends.measurement.contenders import Contender, Samples
from buildsys.backends.measurement.gpu import (
    ENGINE,
    ENGINE_CUDA_GRAPH,
    GpuContender,
    GpuTiming,
    Slot,
)
from buildsys.backends.tensorrt.log import Log
from buildsys.backends.tensorrt.session import TensorRtSession
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor

AnyResource = TypeVar("AnyResource", bound=Resource)


class TimedSession(TensorRtSession):
    """A loaded engine with contenders for benchmarks."""

    _contenders: EngineContenders | None = None

    def contenders(self, inputs: Mapping[str, Tensor], timing: GpuTiming) -> dict[str, Contender]:
        """Return contenders by name; they invalidate earlier ones.

        Raises: StageError: the engine cannot be captured, or allows fewer inferences in flight.
        """
        self._close_contenders()
        self._contenders = EngineContenders(self, inputs, timing)
        return self._contenders.by_name

    def close(self) -> None:
        """Free the contenders and the session."""
        self._close_contenders()
        super().close()

    def _close_contenders(self) -> None:
        if self._contenders is not None:
            self._contenders.close()
            self._contenders = None


class EngineContenders:
    """The contenders of one engine on one set of inputs."""

    def __init__(
        self, first: TensorRtSession, inputs: Mapping[str, Tensor], timing: GpuTiming
    ) -> None:
        self._stack = ExitStack()
        self._timing = timing
        try:
            # the session itself is the first: a second context cannot have its profile if a
            # TensorRT 8.6 engine was built without profile sharing
            first.bind(inputs)()  # includes one-time work of a context
            sessions = [first]
            while len(sessions) < timing.in_flight:
                sessions.append(self._duplicate(first))
                sessions[-1].bind(inputs)()
            self.by_name: dict[str, Contender] = {
                (ENGINE_CUDA_GRAPH if graph else ENGINE): self._contender(sessions, graph=graph)
                for graph in dict.fromkeys(timing.cuda_graph)
            }
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free all sessions, graphs and buffers."""
        self._stack.close()

    def _duplicate(self, session: TensorRtSession) -> TensorRtSession:
        try:
            duplicate = session.duplicate()
        except StageError as failure:
            raise StageError(
                f"there cannot be {self._timing.in_flight} inferences in flight: {failure.problem}",
                failure.hint or "set bench.in_flight: 1",
            ) from failure
        self._stack.callback(duplicate.close)
        return duplicate

    def _contender(self, sessions: Sequence[TensorRtSession], *, graph: bool) -> Contender:
        slots = []
        for session in sessions:
            with session.gpu.current():
                slots.append(Slot(session.gpu.main_stream, self._launch(session, graph=graph)))
        contender = GpuContender(sessions[0].gpu, slots, blocking=self._timing.wait == "block")
        self._stack.callback(contender.close)
        return _LoggedContender(contender, sessions[0].log)

    def _launch(self, session: TensorRtSession, *, graph: bool) -> Run:
        """Return a call to launch one inference with its copies."""
        timing, device, stream = self._timing, session.gpu, session.gpu.main_stream
        compute: Run = session.enqueue
        if graph:
            with session.log.collected() as messages:
                try:
                    captured = self._keep(device, device.capture(stream, session.enqueue))
                except StageError as failure:
                    reason = messages.error_text(failure.problem)
                    text = f"the engine cannot run as a CUDA graph: {reason}"
                    raise StageError(text, "set bench.cuda_graph: false") from failure
            compute = partial(captured.launch, stream)
        copies_in: list[tuple[HostBuffer, Callable[[HostBuffer, Stream], None]]] = []
        copies_out: list[tuple[HostBuffer, Callable[[HostBuffer, Stream], None]]] = []
        if timing.copies_in:
            for buffer, values in session.input_buffers.values():
                source = self._keep(device, device.allocate_host(values.nbytes))
                source.fill(values)
                copies_in.append((source, buffer.copy_from))
        if timing.copies_out:
            for buffer in session.output_buffers:
                target = self._keep(device, device.allocate_host(buffer.size_bytes))
                copies_out.append((target, buffer.copy_to))
        if not copies_in and not copies_out:
            return compute

        def launch() -> None:
            for source, copy in copies_in:
                copy(source, stream)
            compute()
            for target, copy in copies_out:
                copy(target, stream)

        return launch

    def _keep(self, device: Device, resource: AnyResource) -> AnyResource:
        """Free ``resource`` together with these contenders."""

        def free() -> None:
            with device.current():
                device.free(resource)

        self._stack.callback(free)
        return resource


class _LoggedContender:
    """A contender with TensorRT's log in its failures."""

    def __init__(self, contender: GpuContender, log: Log) -> None:
        self._contender = contender
        self._log = log

    def block(self, at_least_s: float, at_least_runs: int) -> Samples:
        """Run a block of the contender."""
        with self._log.collected() as messages:
            try:
                return self._contender.block(at_least_s, at_least_runs)
            except StageError as failure:
                raise StageError(messages.error_text(failure.problem), failure.hint) from failure
