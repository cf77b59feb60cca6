"""Ctrl-C and SIGTERM during a run, without exceptions at arbitrary points.

Python raises KeyboardInterrupt wherever the main thread happens to be: inside ``queue.Queue.get``
of doit's runner it makes ``Condition.wait`` release a lock that it does not hold. Here a thread
stops the workers, and what waits for them then raises KeyboardInterrupt, holding no lock.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Any

from buildsys.cli.command import INTERRUPTED, TERMINATED

NOTICE = "interrupted; finished targets are kept, the rest will run next time\n"
_END_LIMIT_S = 10.0  # for the main thread, once all workers are stopped


class Signals:
    """The signals that end a run."""

    def __init__(self, stop: Callable[[int], None]) -> None:
        """Call ``stop`` with the exit code after a signal, in a thread."""
        self._stop = stop
        self._received: SimpleQueue[int] = SimpleQueue()  # its put may be called by handlers
        self._exit_code = 0
        self._earlier_handlers: dict[int, Any] = {}
        self._ended = threading.Event()

    def catch(self) -> None:
        """Install the handlers, if this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            threading.Thread(target=self._wait, daemon=True).start()
            for number in (signal.SIGINT, signal.SIGTERM):
                self._earlier_handlers[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and self._exit_code:
            exit_at_once(INTERRUPTED)  # Ctrl-C a second time; workers end with this process
        self._exit_code = INTERRUPTED if number == signal.SIGINT else TERMINATED
        self._received.put(self._exit_code)

    def _wait(self) -> None:
        if exit_code := self._received.get():
            self._stop(exit_code)
            if not self._ended.wait(_END_LIMIT_S):  # for example, in a slow download
                exit_at_once(exit_code, NOTICE)

    def restore(self) -> None:
        """Restore the handlers of before the run."""
        while self._earlier_handlers:
            signal.signal(*self._earlier_handlers.popitem())
        self._ended.set()
        self._received.put(0)


def exit_at_once(code: int, notice: str = "") -> None:
    """End this process at once, after restoring a hidden cursor."""
    if os.isatty(1) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        notice = f"\x1b[?25h\r\n{notice}"
    os.write(1, notice.encode())
    os._exit(code)
