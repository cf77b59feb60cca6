"""Work that nobody waits for before the end of a run: it goes on beside the stages, one piece after the other."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Work = Callable[[], None]

_HEAD_START_S = 0.02  # for a stage that begins: files that are flushed hold up those that it makes
_LONGEST_WAIT_S = 0.2  # for a moment in which a stage works


class Background:
    """One thread for as long as there is something to do. The interpreter ends after it, not in the middle of it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Work]] = (
            deque()
        )  # when each has to begin at the latest, monotonic
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._stages = 0
        self._begin_at = 0.0  # monotonic; while a stage works
        self._closing = False

    def submit(self, work: Work) -> None:
        """Have a piece of work done soon. It must not raise."""
        with self._changed:
            self._waiting.append((time.monotonic() + _LONGEST_WAIT_S, work))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work_off, name="background")
                self._thread.start()

    @contextmanager
    def beside_stage(self) -> Iterator[None]:
        """Run the body, which waits for a stage: the best time for all that is to be done here."""
        with self._changed:
            self._stages += 1
            self._begin_at = time.monotonic() + _HEAD_START_S
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._stages -= 1

    def close(self) -> None:
        """Wait until everything is done."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work_off(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    return
                latest, work = self._waiting[0]
                begin_at = min(latest, self._begin_at) if self._stages else latest
                wait_s = begin_at - time.monotonic()
                if wait_s > 0 and not self._closing:
                    self._changed.wait(wait_s)
                    continue
                self._waiting.popleft()
            work()
