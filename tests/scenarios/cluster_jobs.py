"""Executors of clusters and the states of their jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from buildsys.execution.executors.interface import ENDED, LOST, JobExecutor, JobState, connect
from buildsys.manifest.executor_defaults import defaults_of

E = TypeVar("E", bound=JobExecutor)


def connected(expected: type[E], project: Path, **settings: Any) -> E:
    """Return the executor ``lab``; settings have the defaults of a project."""
    executor = connect("lab", {**defaults_of(settings["kind"]), **settings}, project)
    assert isinstance(executor, expected)
    return executor


def state_of(executor: JobExecutor, handle: str) -> JobState:
    return executor.poll([handle])[handle]


def wait(executor: JobExecutor, handle: str, *phases: str) -> JobState:
    """Return the state of a job in one of the phases, by default at its end."""
    found = [state_of(executor, handle)]

    def is_there() -> bool:
        found[0] = state_of(executor, handle)
        return found[0].phase in (phases or (ENDED, LOST))

    wait_for(is_there)
    return found[0]


def wait_for(is_true: Callable[[], object], limit_s: float = 100.0) -> None:
    """Wait for a condition on a busy machine."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, "the condition was not met"
        time.sleep(0.05)
