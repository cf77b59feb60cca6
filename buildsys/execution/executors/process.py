"""Jobs as processes of this machine, such as ``ssh gpu1 buildsys``.

A job ends with this process, however that ends: its standard input closes then, also behind ssh.
"""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.errors import StageError
from buildsys.execution.executors.interface import ENDED, LOST, RUNNING, JobState, RemoteJob
from buildsys.system.files import read_end
from buildsys.system.processes import kill_group, shell_exit_code

_LOG_BYTES = 64 << 10
_SSH_LOST = 255  # exit code of ssh if the connection fails
_END_LIMIT_S = 5.0


class _Started(NamedTuple):
    process: subprocess.Popen[bytes]
    log: Path


class ProcessExecutor:
    """Runs jobs with a command."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], folder: Path) -> None:
        self._command = [*command]
        self._variables = variables
        self._folder = folder
        self._logs = tempfile.TemporaryDirectory(prefix="buildsys-jobs-")
        self._jobs: dict[str, _Started] = {}
        self._numbers = itertools.count()
        self._guard = threading.Lock()

    def submit(self, job: RemoteJob) -> str:
        """Start a process."""
        with self._guard:
            handle = f"{next(self._numbers)}-{job.name}"
            log = Path(self._logs.name, handle)
            command = [*self._command, *self._quoted(job.arguments), "--attached"]
            try:
                with log.open("wb") as output:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=output,
                        stderr=output,
                        cwd=self._folder,
                        env={**os.environ, **self._variables},
                        start_new_session=True,  # Ctrl-C is for us
                    )
            except OSError as error:
                problem = f"cannot run {shlex.join(self._command)}: {error.strerror}"
                raise StageError(problem, "correct the executor's command") from None
            self._jobs[handle] = _Started(process, log)
        return handle

    def poll(self, handles: Collection[str]) -> Mapping[str, JobState]:
        """Return the states of processes."""
        return {handle: self._state(handle) for handle in handles}

    def cancel(self, handle: str) -> None:
        """End a process."""
        started = self._jobs.get(handle)
        if started is not None and started.process.poll() is None:
            _end(started.process)

    def log(self, handle: str) -> str:
        """Return the end of a process's output."""
        started = self._jobs.get(handle)
        return read_end(started.log, _LOG_BYTES) if started else ""

    def forget(self, handle: str) -> None:
        """Drop an ended process and its output."""
        started = self._jobs.pop(handle, None)
        if started is not None:
            started.log.unlink(missing_ok=True)

    def close(self) -> None:
        """End all processes."""
        for handle in list(self._jobs):
            self.cancel(handle)
        self._logs.cleanup()

    def _quoted(self, arguments: Sequence[str]) -> Sequence[str]:
        """Return arguments; ssh lets the other machine's shell split them."""
        return [shlex.quote(one) for one in arguments] if self._is_ssh else arguments

    @property
    def _is_ssh(self) -> bool:
        return Path(self._command[0]).name == "ssh"

    def _state(self, handle: str) -> JobState:
        started = self._jobs.get(handle)
        if started is None:
            return JobState(LOST, reason="it was started by another process")
        code = started.process.poll()
        if code is None:
            return JobState(RUNNING)
        assert started.process.stdin is not None
        started.process.stdin.close()  # a run of thousands of jobs has not as many descriptors
        if code == _SSH_LOST and self._is_ssh:
            lines = self.log(handle).strip().splitlines()
            return JobState(LOST, code, reason=lines[-1] if lines else "the connection was lost")
        return JobState(ENDED, shell_exit_code(code))


def connect(name: str, settings: Mapping[str, Any], project: Path) -> ProcessExecutor:
    """Return the executor with these settings."""
    del name
    command = settings["command"] or [sys.executable, "-m", "buildsys"]
    return ProcessExecutor(command, settings.get("env") or {}, project)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a process end with its children; kill it if it does not."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_LIMIT_S)
        return
    kill_group(process.pid)
    process.wait()
