"""Standard streams that may be closed, full, slow or without a reader.

A run goes on without its console; a command that only prints reports the loss at its end.
"""

import errno
import io
import os
import select
import sys
from typing import TextIO

from buildsys.errors import BuildsysError
from buildsys.system.printable import tolerate_other_encodings

_BROKEN_PIPE = 141  # exit code


class _GuardedFile(io.FileIO):
    """A file for writing that drops what cannot be written, and remembers why."""

    is_closed = False  # whatever is written is lost
    error: OSError | None = None

    def write(self, content: bytes | memoryview) -> int:  # type: ignore[override]
        if self.is_closed:
            self.error = OSError(errno.EBADF, os.strerror(errno.EBADF))
        try:
            while (count := super().write(content)) is None:  # a slow reader, no blocking
                select.select((), (self,), ())
            return count
        except OSError as error:
            self.error = error
            return len(content)


def guard_streams() -> None:
    """Guard the standard streams of this process; open those that are closed."""
    for number in range(3):  # the next file would be the standard stream of our processes
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: PTH123, SIM115
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)


def guarded(stream: TextIO | None) -> TextIO:
    """Guard a stream that writes to a file; None stands for a closed one."""
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # PYTHONUNBUFFERED leaves out the buffer
    if stream is None:
        file = _GuardedFile(os.open(os.devnull, os.O_WRONLY), "w")
        file.is_closed = True
    elif type(stream) is io.TextIOWrapper and type(raw) is io.FileIO:
        file = _GuardedFile(stream.fileno(), "w", closefd=False)
    else:  # it is guarded already, or a test's own
        tolerate_other_encodings(stream)
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(file),  # type: ignore[type-var]
        encoding=getattr(stream, "encoding", "utf-8"),
        errors="replace",  # in ASCII or Latin-1
        line_buffering=getattr(stream, "line_buffering", False) or raw is buffer,
    )


def check_output(code: int) -> int:
    """Return the exit code of a command that prints an answer: ``code`` unless it lost its reader.

    Raises: BuildsysError: a part of the standard output was lost.
    """
    sys.stdout.flush()
    file = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    loss = file.error if isinstance(file, _GuardedFile) else None
    if loss is None or code:
        return code
    if loss.errno == errno.EPIPE:
        return _BROKEN_PIPE
    raise BuildsysError(f"cannot write the output: {loss.strerror}")
