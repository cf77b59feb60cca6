"""Work that nobody waits for before the end of a run: it goes on beside the stages, one piece after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Work = Callable[[], None]


class Background:
    """One thread for as long as there is something to do. The interpreter ends after it, not in the middle of it."""

    def __init__(self) -> None:
        self._waiting: deque[Work] = deque()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def submit(self, work: Work) -> None:
        """Have a piece of work done soon. It must not raise."""
        with self._guard:
            self._waiting.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work_off, name="background")
                self._thread.start()

    def close(self) -> None:
        """Wait until everything is done."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _work_off(self) -> None:
        while True:
            with self._guard:
                if not self._waiting:
                    self._thread = None
                    return
                work = self._waiting.popleft()
            work()
