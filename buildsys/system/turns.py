"""Turns of threads, instead of competition for the interpreter.

Hundreds of threads wait for machines, and some of them always have something to do. With every
system call the interpreter's lock goes to another thread and back: 700 context switches a target,
which cost more than the work itself. With turns one thread works, until it waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_M_ARENA_MAX = -8  # of mallopt in glibc
_lock = threading.Lock()
_state = threading.local()
_are_used = False


@contextmanager
def taken_in_turns(*, needed: bool) -> Iterator[None]:
    """Let threads take turns, if ``needed``; this one has the first."""
    global _are_used
    _are_used = needed
    if needed:  # one heap suffices; else glibc keeps the free memory of each thread apart
        _call_libc("mallopt", _M_ARENA_MAX, 1)
    try:
        with turn():
            yield
    finally:
        _are_used = False


def return_free_memory() -> None:
    """Give the free memory between objects back to the system, if threads take turns."""
    if _are_used:
        _call_libc("malloc_trim", 0)


def _call_libc(name: str, *arguments: int) -> None:
    """Call a function of glibc; without effect elsewhere."""
    import ctypes  # only in runs with many threads

    with suppress(AttributeError, OSError):
        getattr(ctypes.CDLL(None), name)(*arguments)


@contextmanager
def turn() -> Iterator[None]:
    """Let no other thread with a turn work meanwhile."""
    if not _are_used or _has_turn():
        yield
        return
    with _lock:
        _state.has_turn = True
        try:
            yield
        finally:
            _state.has_turn = False


@contextmanager
def waiting() -> Iterator[None]:
    """Let others have their turn while this thread waits.

    It must hold nothing that they need.
    """
    if not _has_turn():
        yield
        return
    _state.has_turn = False
    _lock.release()
    try:
        yield
    finally:
        _lock.acquire()
        _state.has_turn = True


def _has_turn() -> bool:
    return getattr(_state, "has_turn", False)
