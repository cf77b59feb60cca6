"""A loaded TensorRT engine as contenders of a benchmark: several inferences in flight, CUDA graphs, transfers.

Each inference in flight has an execution context, a stream and buffers of its own.

Source: TensorRT developer guide, "Enqueueing", "CUDA Graphs", "Multi-Streaming".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from buildsys.backends.cuda.device import CudaGraph, Device, HostBuffer, Resource, Stream
from buildsys.backends.measurement.gpu import (
    ENGINE,
    ENGINE_CUDA_GRAPH,
    GpuContender,
    GpuTiming,
    Slot,
)
from buildsys.backends.measurement.interleaving import Contender, Samples
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor

if TYPE_CHECKING:
    from buildsys.backends.tensorrt.log import Log
    from buildsys.backends.tensorrt.session import TensorRtSession

Work = Callable[[], None]
Made = TypeVar("Made", bound=Resource)
_NO_GRAPH = "set bench.cuda_graph: false"


class Flights:
    """The inferences of one engine on one set of inputs, and what times them."""

    def __init__(
        self, session: TensorRtSession, inputs: Mapping[str, Tensor], timing: GpuTiming
    ) -> None:
        self._stack = ExitStack()
        self._timing = timing
        try:
            # the session itself is the first: a second context cannot have its profile where a TensorRT 8.6 engine
            # was built without profile sharing
            self._sessions = [self._bound(session, inputs)]
            self._sessions += [
                self._bound(self._twin(session), inputs) for _ in range(timing.in_flight - 1)
            ]
            self.contenders: dict[str, Contender] = {
                (ENGINE_CUDA_GRAPH if graph else ENGINE): self._contender(graph=graph)
                for graph in dict.fromkeys(timing.cuda_graph)
            }
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back all contexts, graphs and buffers."""
        self._stack.close()

    def _twin(self, session: TensorRtSession) -> TensorRtSession:
        try:
            twin = session.twin()
        except StageError as failure:
            raise StageError(
                f"there cannot be {self._timing.in_flight} inferences in flight: {failure.problem}",
                failure.hint or "set bench.in_flight: 1",
            ) from failure
        self._stack.callback(twin.close)
        return twin

    def _bound(self, session: TensorRtSession, inputs: Mapping[str, Tensor]) -> TensorRtSession:
        session.bind(inputs)()  # and what a context does the first time only
        return session

    def _held(self, device: Device, made: Made) -> Made:
        """Give back ``made`` with these flights."""

        def free() -> None:
            with device.current():
                device.free(made)

        self._stack.callback(free)
        return made

    def _contender(self, *, graph: bool) -> Contender:
        slots = [self._slot(session, graph=graph) for session in self._sessions]
        device = self._sessions[0].gpu
        timed = GpuContender(device, slots, blocking=self._timing.wait == "block")
        self._stack.callback(timed.close)
        return _Explained(timed, self._sessions[0].log)

    def _slot(self, session: TensorRtSession, *, graph: bool) -> Slot:
        with session.gpu.current():
            stream = session.gpu.main_stream
            compute = self._graph(session).launch if graph else None
            return Slot(stream, self._launch(session, stream, compute))

    def _graph(self, session: TensorRtSession) -> CudaGraph:
        with session.log.collected() as messages:
            try:
                graph = session.gpu.capture(session.gpu.main_stream, session.enqueue)
                return self._held(session.gpu, graph)
            except StageError as failure:
                reason = messages.sentence(failure.problem)
                raise StageError(
                    f"the engine cannot run as a CUDA graph: {reason}", _NO_GRAPH
                ) from failure

    def _launch(
        self, session: TensorRtSession, stream: Stream, graph: Callable[[Stream], None] | None
    ) -> Work:
        """Return the call that puts one inference with its copies on the stream."""
        timing, device = self._timing, session.gpu
        copies_in: list[tuple[HostBuffer, Callable[[HostBuffer, Stream], None]]] = []
        copies_out: list[tuple[HostBuffer, Callable[[HostBuffer, Stream], None]]] = []
        if timing.copies_in:
            for buffer, values in session.uploaded.values():
                source = self._held(device, device.allocate_host(values.nbytes))
                source.fill(values)
                copies_in.append((source, buffer.copy_from))
        if timing.copies_out:
            targets = [
                self._held(device, device.allocate_host(buffer.size_bytes))
                for buffer in session.computed
            ]
            copies_out = [
                (target, buffer.copy_to)
                for target, buffer in zip(targets, session.computed, strict=True)
            ]
        compute = session.enqueue if graph is None else lambda: graph(stream)
        if not copies_in and not copies_out:
            return compute

        def launch() -> None:
            for source, copy in copies_in:
                copy(source, stream)
            compute()
            for target, copy in copies_out:
                copy(target, stream)

        return launch


class _Explained:
    """A contender whose failure has TensorRT's words for it."""

    def __init__(self, contender: GpuContender, log: Log) -> None:
        self._contender = contender
        self._log = log

    def block(self, at_least_s: float, at_least_runs: int) -> Samples:
        """Return what the contender measures."""
        with self._log.collected() as messages:
            try:
                return self._contender.block(at_least_s, at_least_runs)
            except StageError as failure:
                raise StageError(messages.sentence(failure.problem), failure.hint) from failure
