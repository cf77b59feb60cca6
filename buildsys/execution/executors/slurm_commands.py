"""Commands of Slurm, and the states of jobs in their output."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from buildsys.errors import StageError, TemporaryError
from buildsys.execution.executors.interface import ENDED, LOST, QUEUED, RUNNING, JobState
from buildsys.execution.executors.programs import run_program

CANCELLED = "it was cancelled in Slurm"
# of the job or machine that doit runs in; or settings of users for other purposes
_DROPPED = re.compile(
    r"SLURM_(?!CONF$|CLUSTERS$|JWT$).*|(SQUEUE|SACCT|SCANCEL)_.*|SBATCH_(ARRAY_INX|WAIT)"
    r"|BUILDSYS_LABELS|CUDA_VISIBLE_DEVICES|TMPDIR"
)
_TEMPORARY = re.compile(
    r"unable to contact|timed out|connection|temporarily|munge|zero bytes|standby|authentication"
    r"|transport endpoint|try again",
    re.IGNORECASE,
)
_COLUMNS = {"JobArrayID": 40, "State": 20, "exit_code": 12, "BatchHost": 64, "Reason": 100}
_FIELDS = "JobID,State,ExitCode,NodeList,Reason"
_STARTED = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
_LOST = {
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node did not boot",
    "PREEMPTED": "it was preempted",
    "REVOKED": "another cluster runs it",
}
_STOPPED = {
    "TIMEOUT": "it exceeded its time limit in Slurm; raise `needs: {time: …}`",
    "DEADLINE": "it passed its deadline in Slurm",
    "CANCELLED": CANCELLED,
}
_NEVER = re.compile(
    r"PartitionTimeLimit|BadConstraints|InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed"
    r"|\w*Max\w+PerJob(Limit)?"
)
HELD = "launch failed"  # Slurm holds such a job until somebody releases it


def slurm(program: str, *arguments: str, script: str = "") -> str:
    """Return what a command of Slurm prints.

    Raises: StageError: it is missing, or refuses the request. TemporaryError: Slurm does not
    answer.
    """
    environment = {n: value for n, value in os.environ.items() if not _DROPPED.fullmatch(n)}
    hint = "run doit where the commands of Slurm are installed, such as on a login node"
    done = run_program([program, *arguments], hint, text=script, env=environment)
    if done.returncode == 0:
        return done.stdout
    lines = [re.sub(r"^\w+: (error: )?", "", line) for line in done.stderr.splitlines()]
    problem = f"{program}: " + ("; ".join(lines) or f"exit code {done.returncode}")
    if _TEMPORARY.search(problem):
        raise TemporaryError(problem, "check that Slurm is running")
    is_refused = program == "sbatch"
    hint = "correct the executor's settings in project.yaml, or `needs`"
    raise StageError(problem, hint if is_refused else "check that Slurm works here: scontrol ping")


def queued_jobs() -> dict[str, JobState]:
    """Return the user's jobs, with those just ended (MinJobAge)."""
    form = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
    own = ("--noheader", "--array", "--states=all", f"--user={os.geteuid()}", f"--Format={form}")
    return parse_queue(slurm("squeue", *own))


def parse_queue(listing: str) -> dict[str, JobState]:
    """Return the jobs in the output of squeue."""
    states = {}
    for line in listing.splitlines():
        start, cells = 0, []
        for width in _COLUMNS.values():
            cells.append(line[start : start + width].strip())
            start += width
        handle, state, code, machine, reason = cells
        status = int(code) if code.isdigit() else 0  # as of wait()
        states[handle] = _state(state, status >> 8, status & 0x7F, machine, reason)
    return states


def accounted_jobs(handles: Collection[str]) -> dict[str, JobState]:
    """Return jobs from the accounting of the cluster; empty if it has none."""
    own = ("--noheader", "--parsable2", "--allocations", f"--format={_FIELDS}")
    try:
        return parse_accounting(slurm("sacct", *own, f"--jobs={','.join(sorted(handles))}"))
    except TemporaryError:
        raise
    except StageError:  # it keeps none
        return {}


def parse_accounting(listing: str) -> dict[str, JobState]:
    """Return the jobs in the output of sacct."""
    states = {}
    for line in listing.splitlines():
        handle, state, code, machine, reason = line.split("|", 4)
        status, _, number = code.partition(":")
        word = state.partition(" ")[0]  # of CANCELLED by 1000
        states[handle] = _state(word, int(status), int(number or 0), machine, reason)
    return states


def _state(state: str, code: int, number: int, machine: str, reason: str) -> JobState:
    """Return a job's state from Slurm's words, exit code and signal."""
    machine = "" if machine in ("n/a", "None assigned") else machine
    reason = "" if reason == "None" else reason
    if state in _STARTED:
        return JobState(RUNNING, machine=machine)
    if state in _LOST:
        return JobState(LOST, machine=machine, reason=_LOST[state])
    if state in _STOPPED:
        return JobState(ENDED, machine=machine, reason=_STOPPED[state])
    if state == "OUT_OF_MEMORY":
        return JobState(ENDED, 137, machine, "it exceeded its memory in Slurm")
    if state == "COMPLETED":
        return JobState(ENDED, 0, machine)
    if state == "FAILED":
        if number > 31:  # Slurm's own numbers: the job was not started
            problem = f"Slurm could not start it on {machine}; does that node have the `logs`?"
            return JobState(ENDED, machine=machine, reason=problem)
        return JobState(ENDED, 128 + number if number else code, machine)
    return JobState(QUEUED, machine=machine, reason=reason)


def never_starts(reason: str) -> bool:
    """Return True if a job can never start by itself."""
    return reason.startswith(HELD) or bool(_NEVER.fullmatch(reason))
