"""A GPU in use: its context and all that is made in it.

Source: CUDA Driver API reference, "Primary Context Management", "Context Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol, TypeVar

from buildsys.backends.cuda.calls import call
from buildsys.backends.cuda.gpus import device_handle
from buildsys.backends.cuda.memory import Buffer, HostBuffer, free_and_total
from buildsys.backends.cuda.streams import Event, Stream
from buildsys.errors import StageError


class Resource(Protocol):
    """What is made on a device."""

    def release(self) -> None:
        """Give it back."""
        ...


Made = TypeVar("Made", bound=Resource)


class MemoryInfo(NamedTuple):
    """The memory of a GPU, in bytes."""

    free_bytes: int
    total_bytes: int


class Device:
    """A GPU in use: its primary context, which CUDA libraries in this process share, and one stream.

    Everything made from it belongs to the thread that made it, and lives until ``free`` or ``close``.
    """

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self._device = device_handle(index)
        self._context = ctypes.c_void_p()
        self._held: list[Resource] = []
        call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        try:
            with self.current():
                self.main_stream = Stream()
        except StageError:
            call("cuDevicePrimaryCtxRelease_v2", self._device)
            raise

    @property
    def stream(self) -> int:
        """Return the main stream's handle as the number that other libraries take."""
        return self.main_stream.handle

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU the calling thread's, and give back the one it had."""
        call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def allocate(self, size_bytes: int) -> Buffer:
        """Return new device memory.

        Raises: StageError: there is not that much left.
        """
        return self.hold(Buffer(size_bytes, self.main_stream))

    def allocate_host(self, size_bytes: int) -> HostBuffer:
        """Return new page-locked memory of the host."""
        return self.hold(HostBuffer(size_bytes))

    def new_stream(self) -> Stream:
        """Return another stream."""
        return self.hold(Stream())

    def new_event(self, *, blocking: bool = False) -> Event:
        """Return a new event."""
        return self.hold(Event(blocking=blocking))

    def hold(self, made: Made) -> Made:
        """Take over what was made on this device, and release it with the device; return it."""
        self._held.append(made)
        return made

    def free(self, held: Resource) -> None:
        """Give one thing back."""
        self._held.remove(held)
        held.release()

    def memory(self) -> MemoryInfo:
        """Return what memory is free and there; the device must be current."""
        return MemoryInfo(*free_and_total())

    def synchronize(self) -> None:
        """Wait until all work on the main stream is done.

        Raises: StageError: the work failed.
        """
        self.main_stream.synchronize()

    def close(self) -> None:
        """Give back all that was made, the latest first, and the context. A closed device cannot be used again."""
        if self._context.value is None:
            return
        with (
            self.current(),
            suppress(StageError),
        ):  # work that failed has been told by whoever waited for it
            call("cuCtxSynchronize")  # memory must not go while work on it runs
        try:
            with self.current():
                while self._held:
                    self._held.pop().release()
                self.main_stream.release()
        finally:
            self._context.value = None
            call("cuDevicePrimaryCtxRelease_v2", self._device)
