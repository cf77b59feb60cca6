"""A GPU in use: its context, memory, streams, events and graphs.

Source: CUDA Driver API reference, "Primary Context Management", "Memory Management", "Stream
Management", "Event Management", "Graph Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from cuda.bindings import driver as cuda

from buildsys.backends.cuda.gpus import CudaError, call, format_size
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array

# the legacy default stream would wait for this one, and this one for it
_STREAM_FLAGS = int(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
# other threads may do what a capture forbids in its own thread
_CAPTURE_MODE = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class Resource(Protocol):
    """Anything allocated on a device."""

    def release(self) -> None:
        """Free it."""
        ...


AnyResource = TypeVar("AnyResource", bound=Resource)


class MemoryInfo(NamedTuple):
    """The memory of a GPU, in bytes."""

    free_bytes: int
    total_bytes: int


class Stream:
    """An in-order queue of GPU work. Its device must be current for every call."""

    def __init__(self, handle: int | None = None) -> None:
        """Create a stream, or wrap the ``handle`` of another library's stream."""
        self._owned = handle is None
        self.argument: Any = (
            call(cuda.cuStreamCreate, _STREAM_FLAGS) if handle is None else cuda.CUstream(handle)
        )

    @property
    def handle(self) -> int:
        """Return the stream as a number, for other libraries."""
        return int(self.argument)

    def synchronize(self) -> None:
        """Wait for all work on the stream.

        Raises: StageError: the work failed.
        """
        call(cuda.cuStreamSynchronize, self.argument)

    def release(self) -> None:
        """Destroy the stream; work already on it still runs."""
        if self._owned:
            _release(cuda.cuStreamDestroy, self.argument)


class Event:
    """A point in a stream, with the GPU's time of passing."""

    def __init__(self, *, blocking: bool = False) -> None:
        """Create an event; a wait spins, or sleeps if it is ``blocking``."""
        flag = cuda.CUevent_flags.CU_EVENT_BLOCKING_SYNC if blocking else 0
        self._handle = call(cuda.cuEventCreate, int(flag))

    def record(self, stream: Stream) -> None:
        """Put the event on a stream."""
        call(cuda.cuEventRecord, self._handle, stream.argument)

    def wait(self) -> None:
        """Wait until the GPU has passed it.

        Raises: StageError: work before it failed.
        """
        call(cuda.cuEventSynchronize, self._handle)

    def elapsed_ns(self, begin: Event) -> int:
        """Return the GPU time between two passed events. CUDA resolves about 500 ns."""
        elapsed_ms: float = call(cuda.cuEventElapsedTime, begin._handle, self._handle)
        return round(elapsed_ms * 1e6)

    def release(self) -> None:
        """Destroy the event."""
        _release(cuda.cuEventDestroy, self._handle)


class Buffer:
    """Device memory. Its device must be current for every call.

    Raises: StageError: too little memory is left; says how much was requested and how much is free.
    """

    def __init__(self, size_bytes: int, stream: Stream) -> None:
        """Allocate memory; ``upload`` and ``download`` use ``stream``."""
        self._stream = stream
        self.size_bytes = size_bytes
        try:
            self._pointer = call(cuda.cuMemAlloc, max(1, size_bytes))
        except CudaError as failure:
            if failure.status != cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise
            raise out_of_memory(size_bytes, *memory_info()) from failure

    @property
    def address(self) -> int:
        """Return the device address."""
        return int(self._pointer)

    def upload(self, values: Array) -> None:
        """Copy an array into the buffer and wait for the copy."""
        source = np.ascontiguousarray(values)
        self._copy_in(source.ctypes.data, source.nbytes, self._stream)
        self._stream.synchronize()

    def download(self, target: Array) -> None:
        """Fill a contiguous array after all work on the stream."""
        self._copy_out(target.ctypes.data, target.nbytes, self._stream)
        self._stream.synchronize()

    def copy_from(self, source: HostBuffer, stream: Stream) -> None:
        """Put a copy from the host on ``stream``."""
        self._copy_in(source.address, source.size_bytes, stream)

    def copy_to(self, target: HostBuffer, stream: Stream) -> None:
        """Put a copy to the host on ``stream``."""
        self._copy_out(target.address, target.size_bytes, stream)

    def release(self) -> None:
        """Free the memory."""
        _release(cuda.cuMemFree, self._pointer)

    def _copy_in(self, source: int, size_bytes: int, stream: Stream) -> None:
        if self._has_room(size_bytes):
            call(cuda.cuMemcpyHtoDAsync, self._pointer, source, size_bytes, stream.argument)

    def _copy_out(self, target: int, size_bytes: int, stream: Stream) -> None:
        if self._has_room(size_bytes):
            call(cuda.cuMemcpyDtoHAsync, target, self._pointer, size_bytes, stream.argument)

    def _has_room(self, size_bytes: int) -> bool:
        if size_bytes > self.size_bytes:
            raise ValueError(f"{size_bytes} bytes do not fit a device buffer of {self.size_bytes}")
        return size_bytes > 0


class HostBuffer:
    """Page-locked host memory for copies in parallel with the host."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.address = int(call(cuda.cuMemAllocHost, max(1, size_bytes)))

    def array(self) -> Array:
        """Return the memory as bytes; invalid after ``release``."""
        memory = (ctypes.c_uint8 * self.size_bytes).from_address(self.address)
        return np.ctypeslib.as_array(memory)

    def fill(self, values: Array) -> None:
        """Copy an array into the memory."""
        source = np.ascontiguousarray(values)
        if source.nbytes != self.size_bytes:
            raise ValueError(
                f"{source.nbytes} bytes are not the {self.size_bytes} of a host buffer"
            )
        ctypes.memmove(self.address, source.ctypes.data, source.nbytes)

    def release(self) -> None:
        """Free the memory."""
        _release(cuda.cuMemFreeHost, self.address)


class CudaGraph:
    """Captured work, launched by one call."""

    def __init__(self, stream: Stream, work: Callable[[], object]) -> None:
        """Capture the calls of ``work`` on ``stream``; nothing runs yet.

        Raises: StageError: the work waits for the GPU or allocates, so it cannot be captured, or
        there is none.
        """
        call(cuda.cuStreamBeginCapture, stream.argument, _CAPTURE_MODE)
        try:
            work()
        except BaseException:
            _, graph = cuda.cuStreamEndCapture(stream.argument)  # or it stays in capture mode
            if graph is not None and int(graph):
                _release(cuda.cuGraphDestroy, graph)
            raise
        try:
            self._graph = call(cuda.cuStreamEndCapture, stream.argument)
        except StageError as failure:
            raise StageError(
                f"the work cannot be captured as a CUDA graph: {failure.problem}", failure.hint
            ) from failure
        if not int(self._graph):
            raise StageError("the work cannot be captured as a CUDA graph: there is none")
        try:
            self._executable = call(cuda.cuGraphInstantiate, self._graph, 0)
        except StageError:
            _release(cuda.cuGraphDestroy, self._graph)
            raise

    @property
    def node_count(self) -> int:
        """Return the number of kernels, copies and other nodes."""
        _, count = call(cuda.cuGraphGetNodes, self._graph)
        return int(count)

    def launch(self, stream: Stream) -> None:
        """Put the whole graph on a stream."""
        call(cuda.cuGraphLaunch, self._executable, stream.argument)

    def release(self) -> None:
        """Destroy the graph; it must have finished."""
        _release(cuda.cuGraphExecDestroy, self._executable)
        _release(cuda.cuGraphDestroy, self._graph)


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
        try:
            with self.current():
                self.main_stream = Stream()
        except StageError:
            _release(cuda.cuDevicePrimaryCtxRelease, self._device)
            raise

    @property
    def stream(self) -> int:
        """Return the main stream as a number, for other libraries."""
        return self.main_stream.handle

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU the calling thread's, and restore the previous one."""
        call(cuda.cuCtxPushCurrent, self._context)
        try:
            yield
        finally:
            call(cuda.cuCtxPopCurrent)

    def allocate(self, size_bytes: int) -> Buffer:
        """Return new device memory.

        Raises: StageError: too little memory is left.
        """
        return self.hold(Buffer(size_bytes, self.main_stream))

    def allocate_host(self, size_bytes: int) -> HostBuffer:
        """Return new page-locked host memory."""
        return self.hold(HostBuffer(size_bytes))

    def new_stream(self) -> Stream:
        """Return another stream."""
        return self.hold(Stream())

    def new_event(self, *, blocking: bool = False) -> Event:
        """Return a new event."""
        return self.hold(Event(blocking=blocking))

    def capture(self, stream: Stream, work: Callable[[], object]) -> CudaGraph:
        """Return the graph of the calls of ``work`` on ``stream``.

        Raises: StageError: the work cannot be captured.
        """
        return self.hold(CudaGraph(stream, work))

    def hold(self, resource: AnyResource) -> AnyResource:
        """Release ``resource`` together with the device; return it."""
        self._resources.append(resource)
        return resource

    def free(self, resource: Resource) -> None:
        """Release one resource now."""
        self._resources.remove(resource)
        resource.release()

    def memory(self) -> MemoryInfo:
        """Return free and total memory; the device must be current."""
        return memory_info()

    def synchronize(self) -> None:
        """Wait for all work on the main stream.

        Raises: StageError: the work failed.
        """
        self.main_stream.synchronize()

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


def memory_info() -> MemoryInfo:
    """Return the memory of the current GPU."""
    return MemoryInfo(*call(cuda.cuMemGetInfo))


def out_of_memory(requested_bytes: int, free_bytes: int, total_bytes: int) -> StageError:
    """Return the error for a too large allocation."""
    return StageError(
        f"the GPU is out of memory: {format_size(requested_bytes)} were requested, and"
        f" {format_size(free_bytes)} of its {format_size(total_bytes)} are free"
        " (CUDA_ERROR_OUT_OF_MEMORY)",
        "end other programs on this GPU (nvidia-smi lists them), or use smaller dims or fewer in"
        " flight",
    )


def _release(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> None:
    """Free something and ignore the status.

    CUDA answers with errors of earlier work, which its caller has already reported; raised here
    they would replace the first error.
    """
    function(*arguments)
