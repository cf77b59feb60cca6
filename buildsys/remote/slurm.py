"""Jobs of a Slurm cluster, through its commands on this machine."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Sequence

from buildsys.remote.jobs import ENDED, QUEUED, RUNNING, JobState, RemoteJob, System
from buildsys.system.programs import call_program

# of the job or machine that the driver runs in
_OWN = re.compile(r"SLURM_(?!CONF$|CLUSTERS$|JWT$).*|BUILDSYS_LABELS|CUDA_VISIBLE_DEVICES|TMPDIR")
_STARTED = ("RUNNING", "COMPLETING", "SUSPENDED")
_HINT = "run buildsys where Slurm's commands work; check the executor's settings and `needs`"


class Slurm(System):
    """sbatch, squeue and scancel."""

    def submit(self, jobs: Sequence[RemoteJob]) -> None:
        """Submit jobs, each after the one that it names. Raises: StageError: one is refused."""
        exports = [f"export {name}={shlex.quote(v)}" for name, v in self.environment.items()]
        for job in jobs:
            words = shlex.join([*self.spec.command, *job.command])
            script = "\n".join(["#!/bin/bash", *exports, *self.spec.setup, f"exec {words}", ""])
            output = _slurm("sbatch", *self._options(job), text=script)
            self.handles[job.name] = output.strip().partition(";")[0]

    def states(self, ended: set[str]) -> dict[str, JobState]:
        """Look up the queue; the store tells how others ended. Raises: StageError."""
        del ended
        listing = _slurm("squeue", "--noheader", "--me", "--format=%i|%T|%R")
        queue = {line.partition("|")[0]: line.split("|")[1:] for line in listing.splitlines()}
        states = {}
        for name, handle in self.handles.items():
            phase, reason = queue.get(handle, ("", ""))[:2]
            if not phase:
                hint = f"log: {self._log(name)}" if self.spec.logs else "set `logs` to see why"
                states[name] = JobState(ENDED, f"Slurm job {handle}; {hint}")
            else:
                is_running = phase in _STARTED
                states[name] = JobState(RUNNING if is_running else QUEUED, reason.strip("()"))
        return states

    def cancel(self) -> None:
        """Cancel all jobs. Raises: StageError: Slurm does not answer."""
        _slurm("scancel", *self.handles.values())

    def _log(self, job: str) -> str:
        return f"{self.spec.logs}/{self.run}-{job}.log" if self.spec.logs else os.devnull

    def _options(self, job: RemoteJob) -> list[str]:
        """Return the options of sbatch for one job."""
        spec, needs = self.spec, job.needs
        options = ["--parsable", f"--job-name={job.name}", f"--output={self._log(job.name)}"]
        options += ["--chdir=/", "--requeue", "--open-mode=append", "--kill-on-invalid-dep=yes"]
        if job.after:  # also after a failure: the store tells what is missing
            options.append(f"--dependency=afterany:{self.handles[job.after]}")
        for name in ("partition", "account", "qos"):
            options += [f"--{name}={getattr(spec, name)}"] if getattr(spec, name) else []
        if needs.gpu_count:
            kind = "-".join(needs.gpu.lower().split())
            default = ":".join(filter(None, ("gpu", kind, str(needs.gpu_count))))
            options.append(f"--gres={spec.gres or default}")
        options += [f"--mem={math.ceil(needs.memory / 2**20)}M"] if needs.memory else []
        options += [f"--time={math.ceil(needs.time_s / 60)}"] if needs.time_s else []
        options += ["--exclusive"] if needs.exclusive else []
        return [*options, *spec.options]


def _slurm(program: str, *arguments: str, text: str = "") -> str:
    environment = {n: value for n, value in os.environ.items() if not _OWN.fullmatch(n)}
    return call_program([program, *arguments], _HINT, text, environment)
