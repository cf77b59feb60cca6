"""Locks between processes (flock), released by the kernel with their process."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.005


def open_lock(path: Path, mode: int = 0o666) -> int:
    """Open a lock file, created if missing. Raises: OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file if no other process holds it.

    Raises: OSError: flock is not supported.
    """
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(
    path: Path, *, shared: bool = False, timeout_s: float | None = None, mode: int = 0o666
) -> Iterator[None]:
    """Hold the lock of a file, created if missing.

    Raises: BlockingIOError: another process held it for all of ``timeout_s``. OSError.
    """
    handle = open_lock(path, mode)
    try:
        if timeout_s is None:
            fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        else:
            deadline = time.monotonic() + timeout_s
            while not try_lock(handle, shared=shared):
                if time.monotonic() >= deadline:
                    problem = f"another process has held {path.name} for {timeout_s:g} s"
                    raise BlockingIOError(errno.EWOULDBLOCK, problem)
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)
