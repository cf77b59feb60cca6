"""The state of files on disk, cheap to compare. Standard library only: a load from the cache imports this."""

from __future__ import annotations

import os
import time
from pathlib import Path

FileState = tuple[int, int, int, int]  # mtime_ns, ctime_ns, size, inode

# The kernel's clock for files ticks every few milliseconds: a file written twice within a tick keeps its state.
_RACY_NS = 20_000_000


def file_state(path: Path | str) -> FileState | None:
    """Return the state of what ``path`` leads to, or None where nothing is."""
    try:
        found = os.stat(path)  # noqa: PTH116 - on the path of every start; a Path costs more than the call
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def is_settled(state: FileState | None, since_ns: int) -> bool:
    """Return whether a state taken after ``since_ns`` would differ from that of any later write.

    A file that changed in the last moments before is not settled: a second change may leave no trace.
    """
    return state is None or state[1] < since_ns - _RACY_NS


def now_ns() -> int:
    """Return the time that file states are compared with."""
    return time.time_ns()
