"""A limit on the memory of a piece of work."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# how libraries report exhausted memory without raising MemoryError
OUT_OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "Failed to allocate memory",
)


@contextmanager
def memory_limit(additional_bytes: int) -> Iterator[None]:
    """Limit the private memory of this process to ``additional_bytes`` more.

    An allocation beyond fails at once, as a MemoryError or the error of a library.

    RLIMIT_DATA counts private writable memory. RLIMIT_AS also counts reserved addresses, of which
    CUDA takes hundreds of GB, and mapped files. Systems without /proc have no limit.
    """
    before = resource.getrlimit(resource.RLIMIT_DATA)
    used = _private_bytes()
    limits = [used + additional_bytes, *(one for one in before if one != resource.RLIM_INFINITY)]
    if used:
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _private_bytes() -> int:
    """Return the memory counted by RLIMIT_DATA, 0 if unknown."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return next(int(line.split()[1]) << 10 for line in status.split("\n") if "VmData:" in line)
    except (OSError, StopIteration):
        return 0
