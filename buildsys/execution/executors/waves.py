"""Submissions at about the same time, sent as one request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

from buildsys.errors import StageError
from buildsys.execution.executors.interface import RemoteJob

_OPEN_S = 0.2  # time for further jobs to join
Kind = TypeVar("Kind", bound=Hashable)


class _Wave(NamedTuple):
    jobs: list[RemoteJob]
    handles: Future[Sequence[str | StageError]]


class Waves(Generic[Kind]):
    """Collects jobs of several threads.

    ``start`` submits jobs of one kind; it returns a handle or an error for each.
    """

    def __init__(
        self,
        start: Callable[[Kind, Sequence[RemoteJob]], Sequence[str | StageError]],
        most_jobs: int,
    ) -> None:
        self._start = start
        self._most_jobs = most_jobs
        self._open: dict[Kind, _Wave] = {}
        self._guard = threading.Lock()

    def submit(self, kind: Kind, job: RemoteJob) -> str:
        """Return the handle of a job once its wave has been submitted."""
        with self._guard:
            wave = self._open.setdefault(kind, _Wave([], Future()))
            index = len(wave.jobs)
            wave.jobs.append(job)
            if len(wave.jobs) == self._most_jobs:
                del self._open[kind]
        if index == 0:
            try:
                time.sleep(_OPEN_S)
                with self._guard:
                    if self._open.get(kind) is wave:
                        del self._open[kind]
                wave.handles.set_result(self._start(kind, wave.jobs))
            except BaseException as error:  # the others wait
                wave.handles.set_exception(error)
                raise
        found = wave.handles.result()[index]
        if isinstance(found, StageError):
            raise found
        return found
