"""The thread that polls the jobs of an executor."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from project_folder import wait_until

from buildsys.execution.executors import watcher
from buildsys.execution.executors.interface import ENDED, RUNNING, JobState


class Executor:
    """One job that runs, and others that have ended."""

    polls = 0
    answers: frozenset[str] = frozenset()

    def poll(self, handles: Collection[str]) -> Mapping[str, JobState]:
        self.polls += 1
        return {one: JobState(RUNNING if one == "long" else ENDED, 0) for one in handles}


def test_a_new_wait_ends_a_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_GROWTH", 1e6)
    monkeypatch.setattr(watcher, "_LONGEST_S", 60.0)
    executor: Any = Executor()
    watched = watcher.Watcher(executor)
    states: list[JobState] = []
    thread = threading.Thread(target=watched.wait, args=("long", states.append))
    thread.start()
    wait_until(lambda: executor.polls >= 2, "the job runs, and the long pause has begun")
    begun = time.monotonic()
    ended = watched.wait("short", states.append)
    assert ended == JobState(ENDED, 0)
    assert time.monotonic() - begun < 30
    watched.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert [state.phase for state in states] == [RUNNING, ENDED]


class Notifying(Executor):
    """Its system reports changes."""

    def __init__(self) -> None:
        self.on_change = self.missed

    def missed(self) -> None:
        raise AssertionError("nobody listens")


def test_a_reported_change_ends_a_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_GROWTH", 1e6)
    monkeypatch.setattr(watcher, "_LONGEST_S", 60.0)
    executor: Any = Notifying()
    watched = watcher.Watcher(executor, lambda: executor.answers)
    begun = time.monotonic()
    thread = threading.Thread(target=watched.wait, args=("long", lambda _: None, "answer"))
    thread.start()
    wait_until(lambda: executor.polls >= 2, "the job runs, and the long pause has begun")
    executor.answers = frozenset({"answer"})
    executor.on_change()
    thread.join(30)
    assert not thread.is_alive()
    assert time.monotonic() - begun < 30
    watched.stop()


@pytest.mark.parametrize("reports", [True, False])
def test_an_executor_that_reports_changes_is_seldom_polled(reports: bool) -> None:
    executor: Any = Notifying() if reports else Executor()
    watched = watcher.Watcher(executor)
    thread = threading.Thread(target=watched.wait, args=("long", lambda _: None))
    thread.start()
    wait_until(lambda: executor.polls >= 1, "the first poll")
    time.sleep(0.3)
    assert (executor.polls <= 3) == reports
    watched.stop()
    thread.join(30)
    assert not thread.is_alive()
