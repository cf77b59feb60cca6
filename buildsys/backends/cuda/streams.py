"""Work in order on a GPU: streams, the events between it, and graphs of it that one call launches.

Source: CUDA Driver API reference, "Stream Management", "Event Management", "Graph Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from buildsys.backends.cuda.calls import call, error_text, release, status_of
from buildsys.errors import StageError

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the legacy default stream
_BLOCKING_SYNC = 1  # CU_EVENT_BLOCKING_SYNC: who waits for the event sleeps
_THREAD_LOCAL = (
    1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may go on with what a capture forbids
)


class Stream:
    """Work that a GPU does one after the other. Its device must be current for every call."""

    def __init__(self, handle: int | None = None) -> None:
        """Make a stream, or take over one that another library has made and will destroy: its ``handle``."""
        self._owned = handle is None
        self.argument = ctypes.c_void_p(handle)
        if self._owned:
            call("cuStreamCreate", ctypes.byref(self.argument), ctypes.c_uint(_NON_BLOCKING))

    @property
    def handle(self) -> int:
        """Return the stream as the number that other libraries take."""
        return self.argument.value or 0

    def synchronize(self) -> None:
        """Wait until all work on it is done.

        Raises: StageError: the work failed.
        """
        call("cuStreamSynchronize", self.argument)

    def release(self) -> None:
        """Destroy the stream; what is on it still runs."""
        if self._owned:
            release("cuStreamDestroy_v2", self.argument)


class Event:
    """A point in a stream, with the time at which the GPU passed it."""

    def __init__(self, *, blocking: bool = False) -> None:
        """Make an event; who waits for it spins, or with ``blocking`` sleeps until the GPU interrupts."""
        self._handle = ctypes.c_void_p()
        self._elapsed_ms = ctypes.c_float()
        flags = ctypes.c_uint(_BLOCKING_SYNC if blocking else 0)
        call("cuEventCreate", ctypes.byref(self._handle), flags)

    def record(self, stream: Stream) -> None:
        """Put the event on a stream."""
        call("cuEventRecord", self._handle, stream.argument)

    def wait(self) -> None:
        """Wait until the GPU has passed it.

        Raises: StageError: work before it failed.
        """
        call("cuEventSynchronize", self._handle)

    def elapsed_ns(self, begin: Event) -> int:
        """Return the GPU's time from ``begin`` to this event, both passed. CUDA resolves about 500 ns."""
        call("cuEventElapsedTime", ctypes.byref(self._elapsed_ms), begin._handle, self._handle)
        return round(self._elapsed_ms.value * 1e6)

    def release(self) -> None:
        """Destroy the event."""
        release("cuEventDestroy_v2", self._handle)


class Graph:
    """Captured work that one call launches."""

    def __init__(self, graph: ctypes.c_void_p) -> None:
        """Take over a captured graph and make it ready."""
        self._graph, self._ready = graph, ctypes.c_void_p()
        try:
            call(
                "cuGraphInstantiateWithFlags",
                ctypes.byref(self._ready),
                self._graph,
                ctypes.c_uint64(0),
            )
        except StageError:
            release("cuGraphDestroy", self._graph)
            raise

    @property
    def nodes(self) -> int:
        """Return how many kernels, copies and the like it has."""
        count = ctypes.c_size_t()
        call("cuGraphGetNodes", self._graph, None, ctypes.byref(count))
        return count.value

    def launch(self, stream: Stream) -> None:
        """Put the whole graph on a stream."""
        call("cuGraphLaunch", self._ready, stream.argument)

    def release(self) -> None:
        """Destroy the graph, which must not run any more."""
        release("cuGraphExecDestroy", self._ready)
        release("cuGraphDestroy", self._graph)


def capture(stream: Stream, work: Callable[[], object]) -> Graph:
    """Return the graph of what ``work`` puts on ``stream``, which does not run meanwhile.

    Raises: StageError: the work cannot be captured (it waits for the GPU, or allocates), or is none.
    """
    graph = ctypes.c_void_p()
    call("cuStreamBeginCapture_v2", stream.argument, ctypes.c_int(_THREAD_LOCAL))
    try:
        work()
    except BaseException:
        status_of(
            "cuStreamEndCapture", stream.argument, ctypes.byref(graph)
        )  # or the stream stays in capture
        if graph.value:
            release("cuGraphDestroy", graph)
        raise
    status = status_of("cuStreamEndCapture", stream.argument, ctypes.byref(graph))
    if status or not graph.value:
        raise StageError(
            f"the work cannot be captured as a CUDA graph: {error_text(status) if status else 'none'}"
        )
    return Graph(graph)
