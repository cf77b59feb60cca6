"""Jobs in Kubernetes, through kubectl with the contexts and credentials of its user.

Jobs that are submitted at about the same time go as one list. All Jobs of a run have one label, so
one request lists them with their Pods.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from buildsys.errors import StageError, TemporaryError
from buildsys.execution.executors.interface import ENDED, LOST, JobState, RemoteJob
from buildsys.execution.executors.kubernetes_jobs import job_manifest, job_states
from buildsys.execution.executors.programs import run_program
from buildsys.execution.executors.waves import Waves

RUN = "buildsys/run"  # label with the run that made a Job
_WAVE_JOBS = 200
_POLL_S = 2.0
_LISTED_ENDED = 100  # passed Jobs that stay until the time in `keep`
_LOG_LINES = 200
_NAME_LETTERS = 45
_VALIDATE = "--validate=strict"  # clusters before 1.26 do not know podFailurePolicy
_TEMPORARY = re.compile(
    r"unable to connect|connection|refused|timeout|timed out|no such host|tls handshake|\bEOF\b"
    r"|etcdserver|unavailable|too ?many ?requests|internal ?error|exceeded quota|try again",
    re.IGNORECASE,
)
_PREFIX = re.compile(r'^(error: |Error from server \(\w+\): )?(error when creating "STDIN": )?')
_LOG_LINE = re.compile(r"[EWI]\d{4} |Warning: ")  # of kubectl's own code


class KubernetesExecutor:
    """Runs jobs in one namespace."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._run = secrets.token_hex(4)
        self._waves = Waves(self._start, _WAVE_JOBS)
        self._started: set[str] = set()
        self._final: dict[str, JobState] = {}
        self._passed: list[str] = []
        self._polled = 0.0

    def check_rights(self) -> None:
        """Check the user's permission to create Jobs.

        Raises: StageError, TemporaryError.
        """
        done = self._call("auth", "can-i", "create", "jobs.batch")
        if done.stdout.strip() == "no":
            where = self._settings.get("namespace") or "the context's namespace"
            problem = f"this user may not create Jobs in {where}"
            raise StageError(problem, "ask for a role with create, get, list and delete of jobs")
        if done.returncode:
            raise _error("auth", done.stderr)

    def submit(self, job: RemoteJob) -> str:
        """Create a Job, in one request with others submitted meanwhile."""
        return self._waves.submit("", job)

    def poll(self, handles: Collection[str]) -> Mapping[str, JobState]:
        """Return the states of Jobs with one request."""
        wanted = {handle for handle in handles if handle not in self._final}
        found: dict[str, JobState] = {}
        if wanted:
            time.sleep(max(0.0, self._polled + _POLL_S - time.monotonic()))
            listing = self._kubectl("get", "jobs,pods", f"--selector={RUN}={self._run}", "-ojson")
            self._polled = time.monotonic()
            found = job_states(json.loads(listing)["items"])
            for handle in wanted:
                state = found.setdefault(handle, JobState(LOST, reason="its Job was deleted"))
                if state.phase in (ENDED, LOST):
                    self._final[handle] = state
            self._forget_passed(handle for handle in wanted if found[handle].exit_code == 0)
        return {handle: self._final.get(handle) or found[handle] for handle in handles}

    def cancel(self, handle: str) -> None:
        """Delete a Job with its Pod."""
        self._delete({handle} - self._final.keys())
        self._started.discard(handle)

    def log(self, handle: str) -> str:
        """Return the end of a Pod's log, "" if it is gone."""
        try:
            return self._kubectl("logs", f"job/{handle}", f"--tail={_LOG_LINES}")
        except StageError:
            return ""

    def forget(self, handle: str) -> None:
        """Drop the state of an ended Job, not the Job itself."""
        if self._final.pop(handle, None) is not None:
            self._started.discard(handle)

    def close(self) -> None:
        """Delete all unfinished Jobs."""
        self._delete(self._started - self._final.keys())

    def _start(self, _: str, jobs: Sequence[RemoteJob]) -> list[str | StageError]:
        """Create Jobs; return the name of each, or why it was refused."""
        names = [job_name(job) for job in jobs]
        labels = {RUN: self._run}
        items = [
            job_manifest(job, self._settings, name, labels)
            for job, name in zip(jobs, names, strict=True)
        ]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        done = self._call("create", _VALIDATE, "--filename=-", "--output=name", text=text)
        created = {line.rpartition("/")[2] for line in done.stdout.splitlines()}
        self._started |= created
        error = _error("create", done.stderr) if done.returncode else None
        return [name if name in created or error is None else error for name in names]

    def _forget_passed(self, handles: Iterable[str]) -> None:
        """Delete passed Jobs once there are many: each listing has them."""
        self._passed += handles
        if len(self._passed) > _LISTED_ENDED:
            self._delete(self._passed)
            self._passed = []

    def _delete(self, handles: Collection[str]) -> None:
        if handles:
            self._kubectl(
                "delete", "jobs", *sorted(handles), "--ignore-not-found", "--wait=false",
                "--cascade=background",
            )  # fmt: skip

    def _kubectl(self, *arguments: str) -> str:
        """Return what kubectl prints.

        Raises: StageError: the cluster refuses it. TemporaryError: the cluster does not answer.
        """
        done = self._call(*arguments)
        if done.returncode:
            raise _error(arguments[0], done.stderr or done.stdout)
        return done.stdout

    def _call(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        own = [
            f"--{name}={self._settings[name]}"
            for name in ("context", "namespace")
            if self._settings.get(name)
        ]
        command = ["kubectl", *own, "--request-timeout=30s", *arguments]
        return run_program(command, "install kubectl on this machine", text=text)


def job_name(job: RemoteJob) -> str:
    """Return a Job's new name of at most 63 characters."""
    words = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-") or "job"
    return f"{words[:_NAME_LETTERS].rstrip('-')}-{secrets.token_hex(4)}"


def connect(name: str, settings: Mapping[str, Any], project: Path) -> KubernetesExecutor:
    """Return the executor with these settings.

    Raises: StageError: kubectl is missing, or may not create Jobs. TemporaryError: the cluster
    does not answer.
    """
    del name, project
    executor = KubernetesExecutor(settings)
    executor.check_rights()
    return executor


def _error(verb: str, words: str) -> StageError:
    """Return the error for what kubectl printed."""
    lines = [line for line in words.splitlines() if line and not _LOG_LINE.match(line)]
    lines = [_PREFIX.sub("", line) for line in lines]
    problem = f"kubectl {verb}: " + "; ".join(dict.fromkeys(lines))
    if _TEMPORARY.search(problem):
        return TemporaryError(problem, "check that the cluster answers: kubectl version")
    return StageError(problem, "correct the executor's settings in project.yaml, or its rights")
