"""A background thread for flushing and storing outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """A single thread, started by the first piece of work."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._submitted: list[Future[None]] = []

    def submit(self, work: Callable[[], None]) -> None:
        """Run a piece of work after those submitted before."""
        from concurrent.futures import ThreadPoolExecutor  # 10 ms, too much for a run without work

        with self._guard:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, "background")
            self._submitted.append(self._executor.submit(work))

    def close(self) -> None:
        """Wait until all work is done. Raises: what the first failed piece of work raised."""
        with self._guard:
            executor, submitted = self._executor, self._submitted
            self._executor, self._submitted = None, []
        if executor is not None:
            executor.shutdown()
        for piece in submitted:
            piece.result()
