"""Ctrl-C while a program is imported or not yet in a run. Imports hardly anything."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

INTERRUPTED, TERMINATED = 130, 143  # exit codes
_PROGRAMS = ("buildsys", "doit")
_SWALLOWING = ("<frozen importlib", "/pydantic/")  # imports, and models that are made
_Function = TypeVar("_Function", bound=Callable[..., int])
_endings: list[Callable[[int], None]] = []
_catching: list[object] = []  # code of the functions that handle KeyboardInterrupt


def end_at_interrupt() -> None:
    """End this process at Ctrl-C, if it is a program of ours or of doit.

    An exception would print a traceback, or be swallowed, and the build would go on.
    """
    names = sys.argv[0].removesuffix("/__main__.py").rpartition("/")[2]
    if names in _PROGRAMS and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def ending(end: Callable[[int], None]) -> Iterator[None]:
    """Call ``end`` with the exit code before a signal ends this process."""
    earlier = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread() and earlier is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
    _endings.append(end)
    try:
        yield
    finally:
        _endings.remove(end)
        if signal.getsignal(signal.SIGTERM) is _interrupt:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def raise_below(function: _Function) -> _Function:
    """Decorate a function that handles KeyboardInterrupt; below it, Ctrl-C raises one."""
    _catching.append(function.__code__)
    return function


def _interrupt(number: int, frame: FrameType | None) -> None:
    is_caught = False
    while frame is not None:
        if any(name in frame.f_code.co_filename for name in _SWALLOWING):
            break
        is_caught |= frame.f_code in _catching
        frame = frame.f_back
    if frame is None and is_caught and number == signal.SIGINT:
        signal.default_int_handler(number, frame)
    code = INTERRUPTED if number == signal.SIGINT else TERMINATED
    for end in _endings:
        with suppress(Exception):  # it ends in any case
            end(code)
    os._exit(code)
