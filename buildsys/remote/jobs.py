"""Jobs of a run: the targets of a model by what they need, what runs them, and how they ended."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from buildsys.errors import StageError
from buildsys.plan.action import NO_NEEDS, Action, Needs
from buildsys.report.result_files import adapter
from buildsys.report.run_results import TargetResult
from buildsys.store.ledger import MAX_SECONDS, HistoryEntry, OutputFile

QUEUED, RUNNING, ENDED = "queued", "running", "ended"


@dataclass(frozen=True)
class RemoteJob:
    """One ordinary build on another machine."""

    name: str
    targets: tuple[str, ...]
    needs: Needs = NO_NEEDS
    after: str = ""  # the job before it
    command: tuple[str, ...] = ()  # words after the executor's command


class JobState(NamedTuple):
    """The state of a job, as its system sees it."""

    phase: str  # QUEUED | RUNNING | ENDED
    detail: str = ""  # why it waits, or how it ended


@dataclass(frozen=True)
class TargetSummary:
    """The end of one target, with its files in the store."""

    result: TargetResult
    run: HistoryEntry | None = None  # in the ledger of the other machine
    record: OutputFile | None = None  # the encoded record of a target that is up to date
    reads: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, OutputFile] = field(default_factory=dict)  # path in the build folder


@dataclass(frozen=True)
class JobSummary:
    """The end of one job."""

    exit_code: int
    machine: str = ""
    seconds: float = 0.0
    error: str = ""  # why it could not build
    targets: tuple[TargetSummary, ...] = ()
    history: OutputFile | None = None  # a SQLite file


def read_summary(content: bytes, job: str) -> JobSummary:
    """Read a summary. A damaged one, or of another version, is a job that could not build."""
    try:
        summary: JobSummary = adapter(JobSummary).validate_json(content)
        if not (0 <= summary.exit_code < 256 and 0 <= summary.seconds < MAX_SECONDS):
            raise ValueError("impossible numbers")
    except ValueError:
        problem = f"the summary of the job {job} cannot be read; use one version of buildsys"
        summary = JobSummary(StageError.exit_code, error=problem)
    return summary


@dataclass
class System:
    """A system that runs the jobs of one run. All methods raise StageError."""

    spec: Any  # the executor's entry
    run: str
    environment: Mapping[str, str]  # for the jobs
    logs: Path  # a folder of this machine
    handles: dict[str, str] = field(default_factory=dict)  # job -> its name in the system
    grace_s: ClassVar[float] = 20.0  # for the summary of a job that has ended

    def submit(self, jobs: Sequence[RemoteJob]) -> None:
        """Hand over the jobs, each after the one that it names."""

    def states(self, ended: set[str]) -> Mapping[str, JobState]:
        """Look up all jobs; start those after ``ended`` ones, unless the system does."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End all jobs."""


def plan_jobs(actions: Sequence[Action], *, single: bool = False) -> list[RemoteJob]:
    """Plan the jobs for ``actions`` in build order: for each model, or a ``single`` one.

    Stages on the processor come first, then those that use a GPU or measure, and what reads
    their results: measurements are not shared between machines.
    """
    if single:
        return [RemoteJob("all", tuple(action.target for action in actions))]
    models: dict[str, list[Action]] = {}
    for action in actions:
        models.setdefault(action.model, []).append(action)
    jobs: list[RemoteJob] = []
    for number, (model, of_model) in enumerate(models.items(), 1):
        before, words = "", re.sub(r"[^a-z0-9]+", "-", model.lower())[:30].strip("-")
        for phase, own in enumerate(_phases(of_model), 1):
            name = f"{number:0{len(str(len(models)))}}-{words}-{phase}"
            jobs.append(
                RemoteJob(name, tuple(action.target for action in own), _common_needs(own), before)
            )
            before = name
    return jobs


def _phases(actions: Sequence[Action]) -> Iterator[Sequence[Action]]:
    """Yield the actions of each job of one model: one for each kind of GPU."""
    kinds = dict.fromkeys(_gpu_kind(action) for action in actions if _uses_gpu(action))
    late: dict[str, Action] = {}
    for action in actions if kinds else ():
        before = {*action.after, *action.order}
        if _uses_gpu(action) or action.measures or not before.isdisjoint(late):
            late[action.target] = action
    if early := [action for action in actions if action.target not in late]:
        yield early
    for kind in [kind for kind in kinds if any(kind)][:-1]:
        yield [a for a in late.values() if _uses_gpu(a) and _gpu_kind(a) == kind]
    if late:  # with other kinds: the last machine reports what it lacks
        yield [*late.values()]


def _uses_gpu(action: Action) -> bool:
    return bool(action.needs.gpu_count) or "gpu" in action.devices


def _gpu_kind(action: Action) -> tuple[object, ...]:
    return action.needs.gpu, action.needs.compute_capability, action.needs.labels


def _common_needs(actions: Sequence[Action]) -> Needs:
    """Combine the needs of actions that run one after another; the last kind of GPU counts."""
    needs = [action.needs for action in actions]
    gpu = next((need for need in reversed(needs) if need.gpu_count), NO_NEEDS)
    return gpu._replace(
        gpu_count=max(gpu.gpu_count, int(any(map(_uses_gpu, actions)))),
        memory=max(need.memory for need in needs),
        exclusive=any(need.exclusive for need in needs),
        time_s=max(need.time_s for need in needs),
    )
