"""Jobs in Slurm, through its commands: sbatch, squeue, sacct and scancel.

Jobs that are submitted at about the same time with equal options become one array. Its script has
the command of each task, so nodes need no file of ours: only logs are files.
"""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from buildsys.errors import StageError
from buildsys.execution.executors.interface import ENDED, LOST, QUEUED, JobState, RemoteJob
from buildsys.execution.executors.slurm_commands import (
    CANCELLED,
    HELD,
    accounted_jobs,
    never_starts,
    queued_jobs,
    slurm,
)
from buildsys.execution.executors.waves import Waves
from buildsys.system.files import read_end

_WAVE_JOBS = 500  # the script of an array is at most 4 MB
_POLL_S = 1.0  # between two requests: the controller serves a whole cluster
_LOG_BYTES = 64 << 10
_NAME_LETTERS = 150
_MIB = 1 << 20


class SlurmExecutor:
    """Runs jobs in one cluster."""

    def __init__(self, settings: Mapping[str, Any], logs: Path, wave_jobs: int) -> None:
        self._settings = settings
        self._logs = logs
        self._waves = Waves(self._start, wave_jobs)
        self._log_files: dict[str, Path] = {}
        self._final: dict[str, JobState] = {}  # Slurm forgets ended jobs
        self._cancelled: set[str] = set()
        self._polled = 0.0

    def submit(self, job: RemoteJob) -> str:
        """Start a job, in one array with others submitted meanwhile."""
        return self._waves.submit(self._options(job), job)

    def poll(self, handles: Collection[str]) -> Mapping[str, JobState]:
        """Return the states of jobs with one squeue and one sacct."""
        wanted = {handle for handle in handles if handle not in self._final}
        found: dict[str, JobState] = {}
        if wanted:
            time.sleep(max(0.0, self._polled + _POLL_S - time.monotonic()))
            found = queued_jobs()
            self._polled = time.monotonic()
            if absent := wanted - found.keys():
                found |= accounted_jobs(absent)
            for handle in wanted:
                state = found.get(handle) or self._forgotten(handle)
                if state.phase == QUEUED and never_starts(state.reason):
                    slurm("scancel", handle)
                    phase = LOST if state.reason.startswith(HELD) else ENDED
                    state = JobState(phase, reason=f"Slurm cannot start it: {state.reason}")
                found[handle] = state
                if state.phase in (ENDED, LOST):
                    self._final[handle] = state
        return {handle: self._final.get(handle) or found[handle] for handle in handles}

    def cancel(self, handle: str) -> None:
        """End a job; Slurm kills the rest after its KillWait."""
        self._cancel({handle})

    def log(self, handle: str) -> str:
        """Return the end of a job's log."""
        file = self._log_files.get(handle)
        return read_end(file, _LOG_BYTES) if file else ""

    def forget(self, handle: str) -> None:
        """Drop the state of an ended job; its log stays."""
        if handle in self._final or handle in self._cancelled:
            self._log_files.pop(handle, None)
            self._final.pop(handle, None)
            self._cancelled.discard(handle)

    def close(self) -> None:
        """End all jobs."""
        self._cancel(self._log_files.keys())

    def _cancel(self, handles: Collection[str]) -> None:
        if remaining := {*handles} - self._final.keys():
            self._cancelled |= remaining
            slurm("scancel", *sorted(remaining))

    def _forgotten(self, handle: str) -> JobState:
        """Return the state of a job unknown to Slurm."""
        if handle in self._cancelled:  # tasks of an array that had not started vanish
            return JobState(ENDED, reason=CANCELLED)
        return JobState(LOST, reason="Slurm does not know it any more")

    def _options(self, job: RemoteJob) -> tuple[str, ...]:
        """Return the options of sbatch; jobs with equal ones can share an array."""
        settings, needs = self._settings, job.needs
        options = ["--requeue"]
        for name in ("partition", "account", "qos"):
            if settings.get(name):
                options.append(f"--{name}={settings[name]}")
        if needs.gpu_count:
            kind = re.sub(r"[^a-z0-9]+", "_", needs.gpu.lower())
            gres = settings.get("gres") or ":".join(filter(None, ("gpu", kind)))
            options.append(f"--gres={gres}:{needs.gpu_count}")
        if needs.memory:
            options.append(f"--mem={math.ceil(needs.memory / _MIB)}M")
        if needs.time_s:
            options.append(f"--time={math.ceil(needs.time_s / 60)}")
        if needs.exclusive or job.exclusive:
            options.append("--exclusive")
        return (*options, *settings.get("options", ()))

    def _start(self, options: tuple[str, ...], jobs: Sequence[RemoteJob]) -> list[str]:
        """Submit jobs as one array, or as one job; return their handles."""
        name = jobs[0].name[:_NAME_LETTERS]
        form = f"{name}-%j.log"
        array = []
        if len(jobs) > 1:
            name += f"-and-{len(jobs) - 1}-more"
            form = f"{name}-%A_%a.log"
            array = [f"--array=0-{len(jobs) - 1}"]
        logs = str(self._logs).replace("%", "%%")
        own = [f"--output={logs}/{form}", f"--job-name={name}", *array]
        number = slurm("sbatch", "--parsable", *options, *own, script=self._script(jobs))
        number = number.strip().partition(";")[0]  # the name of a cluster may follow
        handles = [f"{number}_{index}" for index in range(len(jobs))] if array else [number]
        for handle in handles:
            self._log_files[handle] = self._logs / f"{name}-{handle}.log"
        return handles

    def _script(self, jobs: Sequence[RemoteJob]) -> str:
        """Return the script of an array."""
        lines = ["#!/bin/bash"]
        variables = self._settings.get("env") or {}
        lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        lines += ["trap 'exit 126' ERR", *self._settings.get("setup", ()), "trap - ERR"]
        lines.append("case ${SLURM_ARRAY_TASK_ID:-0} in")
        for index, job in enumerate(jobs):
            command = shlex.join([*self._settings["command"], *job.arguments])
            lines.append(f'{index}) echo "{job.name} on $SLURMD_NODENAME"; exec {command};;')
        return "\n".join([*lines, "esac", ""])


def connect(name: str, settings: Mapping[str, Any], project: Path) -> SlurmExecutor:
    """Return the executor with these settings.

    Raises: StageError: Slurm is not installed here. TemporaryError: its controller does not answer.
    """
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", slurm("scontrol", "show", "config"), re.M)
    logs = project / (settings.get("logs") or f".buildsys/jobs/{name}")
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot make the folder {logs} for the logs of {name}: {error.strerror}"
        raise StageError(problem, "correct the executor's `logs`") from None
    return SlurmExecutor(settings, logs, max(1, min(_WAVE_JOBS, int(found[1]) if found else 1)))
