"""A GPU in use: its context, memory, streams, events and graphs.

Source: CUDA Driver API reference, "Primary Context Management", "Memory Management", "Stream
Management", "Event Management", "Graph Management".
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from cuda.bindings import driver as cuda

from buildsys.backends.cuda_gpus import call, describe_error
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array

# the legacy default stream would wait for this one, and this one for it
_STREAM_FLAGS = int(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
# other threads may do what a capture forbids in its own thread
_CAPTURE_MODE = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class Resource:
    """Something allocated on a device."""

    def __init__(self, free: Callable[..., tuple[Any, ...]] | None, handle: Any) -> None:
        """Keep the driver's handle; ``free`` is None if another library owns it."""
        self._free = free
        self.handle = handle

    def release(self) -> None:
        """Free it; ignore the status, which may be of earlier work."""
        if self._free is not None:
            self._free(self.handle)


AnyResource = TypeVar("AnyResource", bound=Resource)


class Stream(Resource):
    """An in-order queue of GPU work. Its device must be current for every call.

    Work that is already on a released stream still runs.
    """

    def __init__(self, handle: int | None = None) -> None:
        """Create a stream, or wrap the ``handle`` of another library's stream."""
        if handle is None:
            super().__init__(cuda.cuStreamDestroy, call(cuda.cuStreamCreate, _STREAM_FLAGS))
        else:
            super().__init__(None, cuda.CUstream(handle))
        self.number = int(self.handle)

    def wait_for(self, event: "Event") -> None:
        """Let later work wait for an event on another stream."""
        call(cuda.cuStreamWaitEvent, self.handle, event.handle, 0)

    def synchronize(self) -> None:
        """Wait for all work on the stream."""
        if cuda.cuStreamSynchronize(self.handle)[0]:
            call(cuda.cuStreamSynchronize, self.handle)  # explains the failure


class Event(Resource):
    """A point in a stream, with the GPU's time of passing."""

    def __init__(self, *, blocking: bool = False) -> None:
        """Create an event; a wait spins, or sleeps if it is ``blocking``."""
        flag = cuda.CUevent_flags.CU_EVENT_BLOCKING_SYNC if blocking else 0
        super().__init__(cuda.cuEventDestroy, call(cuda.cuEventCreate, int(flag)))

    def record(self, stream: Stream) -> None:
        """Put the event on a stream."""
        call(cuda.cuEventRecord, self.handle, stream.handle)

    def wait(self) -> None:
        """Wait until the GPU has passed it."""
        call(cuda.cuEventSynchronize, self.handle)

    def elapsed_ns(self, begin: "Event") -> int:
        """Wait for the event; return the GPU time since an earlier one.

        CUDA resolves about 500 ns.
        """
        self.wait()
        elapsed_ms: float = call(cuda.cuEventElapsedTime, begin.handle, self.handle)
        return round(elapsed_ms * 1e6)


class Buffer(Resource):
    """Device memory. Its device must be current for every call."""

    def __init__(self, size_bytes: int, stream: Stream) -> None:
        """Allocate memory; ``upload`` and ``download`` use ``stream``."""
        super().__init__(cuda.cuMemFree, call(cuda.cuMemAlloc, max(1, size_bytes)))
        self.address = int(self.handle)
        self.size_bytes = size_bytes
        self._stream = stream

    def upload(self, values: Array) -> None:
        """Copy an array into the buffer and wait for the copy."""
        source = np.ascontiguousarray(values)
        self.copy_from(source, source.nbytes, self._stream)
        self._stream.synchronize()

    def download(self, target: Array) -> None:
        """Fill a contiguous array after all work on the stream."""
        self.copy_to(target, target.nbytes, self._stream)
        self._stream.synchronize()

    def copy_from(self, source: Array | int, size_bytes: int, stream: Stream) -> None:
        """Put a copy from a contiguous array, or a host address, on ``stream``."""
        if self._has_room(size_bytes):
            call(cuda.cuMemcpyHtoDAsync, self.handle, source, size_bytes, stream.handle)

    def copy_to(self, target: Array | int, size_bytes: int, stream: Stream) -> None:
        """Put a copy to a contiguous array, or a host address, on ``stream``."""
        if self._has_room(size_bytes):
            call(cuda.cuMemcpyDtoHAsync, target, self.handle, size_bytes, stream.handle)

    def copy_on_device(self, address: int, size_bytes: int, stream: Stream) -> None:
        """Put a copy to other device memory on ``stream``."""
        if self._has_room(size_bytes):
            call(cuda.cuMemcpyDtoDAsync, address, self.handle, size_bytes, stream.handle)

    def _has_room(self, size_bytes: int) -> bool:
        assert size_bytes <= self.size_bytes
        return size_bytes > 0


class HostBuffer(Resource):
    """Page-locked host memory for copies in parallel with the host."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(cuda.cuMemFreeHost, call(cuda.cuMemAllocHost, max(1, size_bytes)))
        self.address = int(self.handle)
        self.size_bytes = size_bytes
        memory = (ctypes.c_uint8 * size_bytes).from_address(self.address)
        self.array: Array = np.ctypeslib.as_array(memory)  # invalid after ``release``

    def fill(self, values: Array) -> None:
        """Copy an array into the memory."""
        source = np.ascontiguousarray(values)
        assert source.nbytes == self.size_bytes
        ctypes.memmove(self.address, source.ctypes.data, source.nbytes)


class CudaGraph(Resource):
    """Captured work, launched by one call; release it after it has finished."""

    def __init__(self, stream: Stream, work: Callable[[], object]) -> None:
        """Capture the calls of ``work`` on ``stream``; nothing runs yet."""
        call(cuda.cuStreamBeginCapture, stream.handle, _CAPTURE_MODE)
        try:
            work()
        finally:
            status, graph = cuda.cuStreamEndCapture(stream.handle)  # or it stays in capture mode
        if status or not int(graph):
            reason = describe_error(status)
            raise StageError(f"the work cannot be captured as a CUDA graph: {reason}")
        try:
            executable = call(cuda.cuGraphInstantiate, graph, 0)
        finally:
            cuda.cuGraphDestroy(graph)  # the executable graph does not need it
        super().__init__(cuda.cuGraphExecDestroy, executable)

    def launch(self, stream: Stream) -> None:
        """Put the whole graph on a stream."""
        call(cuda.cuGraphLaunch, self.handle, stream.handle)


class Current:
    """A block with a current context; every inference enters several."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        if cuda.cuCtxPushCurrent(self._context)[0]:
            call(cuda.cuCtxPushCurrent, self._context)  # explains the failure

    def __exit__(self, *_: object) -> None:
        if cuda.cuCtxPopCurrent()[0]:
            call(cuda.cuCtxPopCurrent)


class Device:
    """A GPU's primary context, shared with other CUDA libraries, and one stream.

    Everything created from it must be used in the creating thread and lives until ``free`` or
    ``close``.
    """

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self._device = call(cuda.cuDeviceGet, index)
        self._resources: list[Resource] = []
        self._context = call(cuda.cuDevicePrimaryCtxRetain, self._device)
        with self.current():
            self.main_stream = Stream()

    def current(self) -> Current:
        """Return a block with this GPU as the calling thread's."""
        return Current(self._context)

    def allocate(self, size_bytes: int) -> Buffer:
        """Allocate new device memory."""
        return self.hold(Buffer(size_bytes, self.main_stream))

    def capture(self, work: Callable[[], object]) -> CudaGraph:
        """Capture what ``work`` puts on the main stream as a graph."""
        return self.hold(CudaGraph(self.main_stream, work))

    def new_event(self, *, blocking: bool = False) -> Event:
        """Make a new event."""
        return self.hold(Event(blocking=blocking))

    def hold(self, resource: AnyResource) -> AnyResource:
        """Release ``resource`` together with the device; return it."""
        self._resources.append(resource)
        return resource

    def free(self, resource: Resource) -> None:
        """Release one resource now."""
        self._resources.remove(resource)
        resource.release()

    def memory(self) -> tuple[int, int]:
        """Return the free and the total bytes; the device must be current."""
        free_bytes, total_bytes = call(cuda.cuMemGetInfo)
        return free_bytes, total_bytes

    def close(self) -> None:
        """Release all resources, the newest first, and the context."""
        if self._context is None:
            return
        # memory must not go while work on it runs; failed work was reported to its caller
        with self.current(), suppress(StageError):
            call(cuda.cuCtxSynchronize)
        try:
            with self.current():
                while self._resources:
                    self._resources.pop().release()
                self.main_stream.release()
        finally:
            self._context = None
            call(cuda.cuDevicePrimaryCtxRelease, self._device)
