"""Ctrl-C and SIGTERM during a run, without exceptions at arbitrary points.

Python raises KeyboardInterrupt wherever the main thread happens to be: inside ``queue.Queue.get``
of doit's runner it makes ``Condition.wait`` release a lock that it does not hold. Here the signal
handler only writes to a pipe. A thread that reads it stops the workers, and whoever waits for
them then raises KeyboardInterrupt, holding no lock.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

INTERRUPTED, TERMINATED = 130, 143
NOTICE = "interrupted; finished targets are kept, the rest will run next time\n"
_END_LIMIT_S = 10.0  # for the main thread, once all workers are stopped


class Interruption:
    """A block with signals calling ``stop`` in a separate thread."""

    def __init__(self, stop: Callable[[int], None]) -> None:
        self._stop = stop
        self._received: set[int] = set()
        self._handlers: dict[int, Any] = {}
        self._ended = threading.Event()

    def __enter__(self) -> None:
        """Take over SIGINT and SIGTERM, if in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._read_end, self._write_end = os.pipe()
        self._thread = threading.Thread(target=self._wait_for_signal, daemon=True)
        self._thread.start()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._receive)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the handlers."""
        if not self._handlers:
            return
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._ended.set()
        os.close(self._write_end)
        self._thread.join()
        os.close(self._read_end)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and number in self._received:
            os._exit(INTERRUPTED)  # Ctrl-C a second time; workers end with this process
        self._received.add(number)
        os.write(self._write_end, bytes([number]))

    def _wait_for_signal(self) -> None:
        number = os.read(self._read_end, 1)
        if not number:
            return
        exit_code = INTERRUPTED if number[0] == signal.SIGINT else TERMINATED
        self._stop(exit_code)
        if not self._ended.wait(_END_LIMIT_S):  # for example, in a slow download
            sys.stdout.write(NOTICE)
            sys.stdout.flush()
            os._exit(exit_code)
