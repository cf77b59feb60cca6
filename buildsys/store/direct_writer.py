"""Write a file past the system's memory.

What goes into the store is read again when somebody goes back to an earlier state, which may be never. Written in the
usual way each copy would take as much of the page cache as the output itself has, which the next stages read. In a
virtual machine whose host takes free memory back, a new page of it costs more than the copy: 0.4 GB/s, and 2 GB/s
past it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

_BLOCK_BYTES = 4096  # a multiple of what disks and file systems ask for
_REFUSALS = (errno.EINVAL, errno.ENOTSUP)
_SLOWEST = 400e6  # bytes/s: below it the end of a run would wait for the disk
_PATIENCE_S = 0.1  # until a disk is called slow


class DirectWriter:
    """Writes to a file descriptor, directly for as long as its file system can and its disk keeps up."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seconds = 0.0
        self._bytes = 0
        self._direct = self._switch(to=True)

    def write(self, content: memoryview) -> int:
        """Write from the beginning of ``content``, which lies on a page; return how many bytes were written.

        Raises: OSError: the file cannot be written.
        """
        whole = len(content) - len(content) % _BLOCK_BYTES
        if self._direct and whole:
            try:
                return self._write_timed(content[:whole])
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise
        if self._direct:  # the rest of a file, or a file system that takes no such writes after all
            self._direct = self._switch(to=False)
        return os.write(self._descriptor, content)

    def _write_timed(self, content: memoryview) -> int:
        began = time.perf_counter()
        written = os.write(self._descriptor, content)
        self._seconds += time.perf_counter() - began
        self._bytes += written
        is_slow = self._seconds > _PATIENCE_S and self._seconds * _SLOWEST > self._bytes
        if is_slow or written % _BLOCK_BYTES:
            self._direct = self._switch(to=False)
        return written

    def _switch(self, *, to: bool) -> bool:
        """Have the next writes be direct, or not; return whether they are."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(
                self._descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if to else flags & ~os.O_DIRECT
            )
        except OSError:  # a file system that has no direct writes
            return False
        return to
