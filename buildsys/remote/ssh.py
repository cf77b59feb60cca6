"""A machine reached by ssh: one job, run by the ssh program."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from buildsys.errors import StageError
from buildsys.remote.jobs import ENDED, RUNNING, JobState, RemoteJob, System

# The command ends with this connection, whose end closes its standard input there. In sh, commands
# in the background have none, so a copy of it is kept as 3.
_WRAPPER = """\
exec 3<&0; {command} 3<&- </dev/null & c=$!
(cat <&3; kill $c) >/dev/null 2>&1 & k=$!
wait $c; code=$?; kill $k 2>/dev/null; exit $code"""
_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15")


@dataclass
class Ssh(System):
    """The ssh program, with the user's configuration, keys and known hosts."""

    grace_s = 3.0  # a command ends after its summary is stored
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def submit(self, jobs: Sequence[RemoteJob]) -> None:
        """Start the jobs. Raises: StageError: there is no ssh."""
        self.logs.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            variables = [f"{name}={value}" for name, value in self.environment.items()]
            words = shlex.join(["env", *variables, *self.spec.command, *job.command])
            script = shlex.quote(_WRAPPER.format(command=words))
            command = ["ssh", *_OPTIONS, "--", self.spec.host, f"exec sh -c {script}"]
            try:
                with self._log(job.name).open("wb") as log:
                    self.running[job.name] = subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=log, stderr=log,
                        start_new_session=True,  # ctrl-c reaches it through `cancel`
                    )  # fmt: skip
            except OSError as error:
                problem = f"cannot start ssh: {error.strerror}"
                raise StageError(problem, "install the OpenSSH client") from error

    def states(self, ended: set[str]) -> dict[str, JobState]:
        """Look up the jobs; none of another process, as they ended with it."""
        del ended
        states = {}
        for name, process in self.running.items():
            code, log = process.poll(), self._log(name)
            states[name] = JobState(RUNNING)
            if code is not None:
                line = (log.read_text(errors="replace").splitlines() or [""])[-1]
                states[name] = JobState(ENDED, f"exit code {code}: {line}; log: {log}")
        return states

    def cancel(self) -> None:
        """Close the connections, which ends the commands there."""
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)  # closes its standard input
            process.kill()

    def _log(self, job: str) -> Path:
        return self.logs / f"{self.run}-{job}.log"
