"""Waiting for jobs: one thread polls for all others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping

from buildsys.execution.executors.interface import ENDED, LOST, JobExecutor, JobState

_SHORTEST_S, _LONGEST_S, _GROWTH = 0.02, 2.0, 1.3
_UNREACHABLE_S = 120.0  # without an answer of the system its jobs count as lost


class Watcher:
    """Polls the jobs of one executor, and the answers of those that go on after them."""

    def __init__(
        self, executor: JobExecutor, answers: Callable[[], Collection[str]] = tuple
    ) -> None:
        self._executor = executor
        self._list_answers = answers
        self._states: dict[str, JobState | None] = {}
        self._awaited: dict[str, str] = {}  # handle -> name of the answer
        self._answered: set[str] = set()  # handles
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def wait(
        self, handle: str, on_state: Callable[[JobState], None], answer: str = ""
    ) -> JobState | None:
        """Return the state of a job that has ended or is lost, None after ``stop``.

        With the name of an ``answer``, also that of a job that has written it and goes on.
        ``on_state`` gets every change, in the calling thread.
        """
        seen = None
        with self._changed:
            self._states[handle] = None
            if answer:
                self._awaited[handle] = answer
            self._start()
            self._changed.notify_all()
        try:
            while not self._is_stopped:
                with self._changed:
                    state, has_answered = self._states[handle], handle in self._answered
                    if state == seen and not has_answered:
                        self._changed.wait(_LONGEST_S)
                        continue
                if state is not None and state != seen:
                    on_state(state)
                seen = state
                if state is not None and (has_answered or state.phase in (ENDED, LOST)):
                    return state
            return None
        finally:
            with self._changed:
                self._states.pop(handle, None)
                self._awaited.pop(handle, None)
                self._answered.discard(handle)

    def stop(self) -> None:
        """End all waits."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._poll_all, daemon=True, name="executor")
            self._thread.start()

    def _poll_all(self) -> None:
        pause_s, answered = _SHORTEST_S, time.monotonic()
        known: set[tuple[str, str]] = set()
        while not self._is_stopped:
            with self._changed:
                while not self._states and not self._is_stopped:
                    self._changed.wait()
                    answered = time.monotonic()
                handles = frozenset(self._states)
                waits = {(handle, self._awaited.get(handle, "")) for handle in handles}
            if waits - known:  # short stages end soon
                pause_s = _SHORTEST_S
            known = waits
            try:
                found = self._executor.poll(handles)
                names = self._list_answers() if self._awaited else ()
                answered = time.monotonic()
            except Exception as error:  # of any library; the system may come back
                late = time.monotonic() - answered > _UNREACHABLE_S
                found, names = _all_lost(handles, error) if late else {}, ()
            with self._changed:
                changes = {
                    handle: state
                    for handle, state in found.items()
                    if handle in self._states and self._states[handle] != state
                }
                self._states.update(changes)
                there = {handle for handle, name in self._awaited.items() if name in names}
                new = there - self._answered
                self._answered |= new
                if changes or new:
                    pause_s = _SHORTEST_S
                    self._changed.notify_all()
            time.sleep(pause_s)
            pause_s = min(pause_s * _GROWTH, _LONGEST_S)


def _all_lost(handles: Collection[str], error: Exception) -> Mapping[str, JobState]:
    reason = f"no answer for {_UNREACHABLE_S:g} s: {error}"
    return {handle: JobState(LOST, reason=reason) for handle in handles}
