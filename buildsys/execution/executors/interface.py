"""The interface of executors, and their kinds.

An executor starts commands of buildsys on other machines and tells what has become of them. It
knows nothing of targets, keys and results: these travel through the shared cache.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from buildsys.plan.action import Needs

QUEUED, RUNNING, ENDED, LOST = "queued", "running", "ended", "lost"
LOCAL = "local"  # the kind of this machine
_KINDS = {  # kind -> module with ``connect``
    "process": "buildsys.execution.executors.process",
    "ray": "buildsys.execution.executors.ray",
    "slurm": "buildsys.execution.executors.slurm",
    "kubernetes": "buildsys.execution.executors.kubernetes",
}


class RemoteJob(NamedTuple):
    """A command of buildsys to run on another machine."""

    name: str  # for people, of letters, digits and hyphens: engine-resnet50-trt-fp16
    arguments: tuple[str, ...]  # of buildsys: run-action DIGEST --store URL …
    needs: Needs
    exclusive: bool = False  # it measures: no other job may use the machine or its GPU meanwhile


class JobState(NamedTuple):
    """What has become of a job."""

    phase: str  # queued | running | ended | lost
    exit_code: int | None = None  # of an ended one, if its system did not end it
    machine: str = ""  # its name, once known
    reason: str = ""  # why it is queued, or was lost


class JobExecutor(Protocol):
    """A system for jobs. Thread-safe.

    All raise TemporaryError if the system cannot be reached.
    """

    def submit(self, job: RemoteJob) -> str:
        """Start a job; return its handle.

        Raises: StageError: the system refuses the job, and would refuse it again.
        """

    def poll(self, handles: Collection[str]) -> Mapping[str, JobState]:
        """Return the states of jobs, in one request if possible.

        A job is ``lost`` if its machine, or its place in the queue, was lost: it can be submitted
        again. An unknown handle is lost as well.
        """

    def cancel(self, handle: str) -> None:
        """End a job with all its processes, unless it has ended."""

    def log(self, handle: str) -> str:
        """Return what a job has printed so far, "" if that is unknown."""

    def forget(self, handle: str) -> None:
        """Drop what is kept of a job that has ended or was cancelled."""

    def close(self) -> None:
        """End all unfinished jobs and the connection."""


@runtime_checkable
class Notifying(Protocol):
    """An executor whose system reports changes; others are only polled."""

    on_change: Callable[[], None]  # called in any thread when a state or a log has changed


def connect(name: str, settings: Mapping[str, Any], project: Path) -> JobExecutor:
    """Return the executor of project.yaml with this name.

    Its module has a function ``connect`` with the same parameters.
    Raises: StageError: a package or program is missing. TemporaryError: it cannot be reached.
    """
    module = importlib.import_module(_KINDS[settings["kind"]])
    return cast("JobExecutor", module.connect(name, settings, project))
