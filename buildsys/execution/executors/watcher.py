"""Waiting for jobs: one thread polls for all others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from buildsys.execution.executors.interface import (
    ENDED,
    LOST,
    JobExecutor,
    JobState,
    Notifying,
)
from buildsys.system.turns import waiting

# between two polls: late by a twentieth of the wait on average
_SHORTEST_S, _LONGEST_S, _GROWTH = 0.002, 2.0, 1.1
_NOTIFIED_S = 0.5  # the first pause of an executor that reports changes
_UNREACHABLE_S = 120.0  # without an answer of the system its jobs count as lost


class _Change(NamedTuple):
    state: JobState
    has_answered: bool


class Watcher:
    """Polls the jobs of one executor, and the answers of those that go on after them.

    A job prints a line after it has answered, so an executor that reports changes is polled at
    the right moment, and seldom in between.
    """

    def __init__(
        self, executor: JobExecutor, answers: Callable[[], Collection[str]] = tuple
    ) -> None:
        self._executor = executor
        self._list_answers = answers
        self._states: dict[str, JobState | None] = {}
        self._awaited: dict[str, str] = {}  # handle -> name of the answer
        # one queue per wait: with one condition for all, every change would wake all
        self._changes: dict[str, SimpleQueue[_Change | None]] = {}
        self._added = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopped = self._has_changed = False
        self._first_pause_s = _SHORTEST_S
        if isinstance(executor, Notifying):
            executor.on_change = self._notice
            self._first_pause_s = _NOTIFIED_S

    def wait(
        self, handle: str, on_state: Callable[[JobState], None], answer: str = ""
    ) -> JobState | None:
        """Return the state of a job that has ended or is lost, None after ``stop``.

        With the name of an ``answer``, also that of a job that has written it and goes on.
        ``on_state`` gets every change, in the calling thread.
        """
        changes: SimpleQueue[_Change | None] = SimpleQueue()
        with self._added:
            if self._is_stopped:
                return None
            self._states[handle], self._changes[handle] = None, changes
            if answer:
                self._awaited[handle] = answer
            self._start()
            self._added.notify()
        seen = None
        try:
            while True:
                with waiting():
                    change = changes.get()
                if change is None:
                    return None
                if change.state != seen:
                    on_state(change.state)
                seen = change.state
                if change.has_answered or seen.phase in (ENDED, LOST):
                    return seen
        finally:
            with self._added:
                del self._states[handle], self._changes[handle]
                self._awaited.pop(handle, None)

    def stop(self) -> None:
        """End all waits."""
        with self._added:
            self._is_stopped = True
            for changes in self._changes.values():
                changes.put(None)
            self._added.notify()

    def _notice(self) -> None:
        with self._added:
            self._has_changed = True
            self._added.notify()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._poll_all, daemon=True, name="executor")
            self._thread.start()

    def _poll_all(self) -> None:
        pause_s, answered = self._first_pause_s, time.monotonic()
        known: set[tuple[str, str]] = set()
        while not self._is_stopped:
            with self._added:
                while not self._states and not self._is_stopped:
                    self._added.wait()
                    answered = time.monotonic()
                handles, known = frozenset(self._states), self._waits()
                self._has_changed = False
            begun = time.monotonic()
            try:
                found = self._executor.poll(handles)
                names = self._list_answers() if self._awaited else ()
                answered = time.monotonic()
            except Exception as error:  # of any library; the system may come back
                late = time.monotonic() - answered > _UNREACHABLE_S
                found, names = _all_lost(handles, error) if late else {}, ()
            with self._added:
                for handle, changes in self._changes.items():
                    before, state = self._states[handle], found.get(handle)
                    state = state or before
                    has_answered = self._awaited.get(handle, "") in names
                    if state is not None and (state != before or has_answered):
                        self._states[handle] = state
                        changes.put(_Change(state, has_answered))
                        pause_s = self._first_pause_s
                        if has_answered:
                            del self._awaited[handle]
                if self._added.wait_for(partial(self._is_new, known), pause_s):
                    pause_s = self._first_pause_s  # short stages end soon
            time.sleep(max(0.0, begun + _SHORTEST_S - time.monotonic()))
            pause_s = min(pause_s * _GROWTH, _LONGEST_S)

    def _waits(self) -> set[tuple[str, str]]:
        return {(handle, self._awaited.get(handle, "")) for handle in self._states}

    def _is_new(self, known: set[tuple[str, str]]) -> bool:
        """Return True after a change, the beginning of a wait, or the end of all."""
        return self._is_stopped or self._has_changed or not self._waits() <= known


def _all_lost(handles: Collection[str], error: Exception) -> Mapping[str, JobState]:
    reason = f"no answer for {_UNREACHABLE_S:g} s: {error}"
    return {handle: JobState(LOST, reason=reason) for handle in handles}
