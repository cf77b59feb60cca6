"""Ctrl-C and SIGTERM during a run, without exceptions at arbitrary points.

Python raises KeyboardInterrupt wherever the main thread happens to be: inside ``queue.Queue.get``
of doit's runner it makes ``Condition.wait`` release a lock that it does not hold. Here the signal
handler only writes to a pipe. A thread that reads it stops the workers, and whoever waits for
them then raises KeyboardInterrupt, holding no lock.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from buildsys.cli.command import INTERRUPTED, TERMINATED

NOTICE = "interrupted; finished targets are kept, the rest will run next time\n"
_END_LIMIT_S = 10.0  # for the main thread, once all workers are stopped


@contextmanager
def on_interruption(stop: Callable[[int], None]) -> Iterator[None]:
    """Call ``stop`` in a thread after SIGINT or SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: set[int] = set()
    ended = threading.Event()
    read_end, write_end = os.pipe()

    def receive(number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and number in received:
            exit_at_once(INTERRUPTED)  # Ctrl-C a second time; workers end with this process
        received.add(number)
        os.write(write_end, bytes([number]))

    def wait_for_signal() -> None:
        number = os.read(read_end, 1)
        if not number:
            return
        exit_code = INTERRUPTED if number[0] == signal.SIGINT else TERMINATED
        stop(exit_code)
        if not ended.wait(_END_LIMIT_S):  # for example, in a slow download
            exit_at_once(exit_code, NOTICE)

    thread = threading.Thread(target=wait_for_signal, daemon=True)
    thread.start()
    handlers = {
        number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        ended.set()
        os.close(write_end)
        thread.join()
        os.close(read_end)


def exit_at_once(code: int, notice: str = "") -> NoReturn:
    """End this process at once, after restoring a hidden cursor."""
    with suppress(OSError):
        if os.isatty(1) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
            os.write(1, b"\x1b[?25h\r\n")
        os.write(1, notice.encode())
    os._exit(code)
