"""Start of worker servers and foreground stages, or connection to running servers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from buildsys.errors import StageError, Unavailable
from buildsys.system.interpreters.interpreter import Interpreter, check_interpreter
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.system.printable import printable
from buildsys.system.processes import Process
from buildsys.system.text_cache import TextCache
from buildsys.workers import registry
from buildsys.workers.environment import fingerprint, server_environment, split_environment
from buildsys.workers.job import Job, StageResult
from buildsys.workers.protocol import Message
from buildsys.workers.result_file import write_result
from buildsys.workers.server_handle import ServerHandle
from buildsys.workers.server_kinds import ServerKind, server_kind_of, toolchain_of

_BACKLOG = 128  # connections waiting while a server still loads libraries


@dataclass(frozen=True)
class Launch:
    """Everything a worker process is started from. ``folder`` is its current one."""

    kind: ServerKind
    python: str
    folder: Path
    environment: Mapping[str, str]
    interpreter: Interpreter | None  # None: that of this process

    @classmethod
    def of(cls, kind: ServerKind, toolchain: Toolchain | None, folder: Path) -> Launch:
        """Prepare ``folder`` for worker processes of one kind."""
        folder.mkdir(parents=True, exist_ok=True)
        interpreter = None if toolchain is None else check_interpreter(toolchain).require()
        path = None if interpreter is None else interpreter.path
        environment = server_environment(folder, os.environ, toolchain, path)
        python = sys.executable if toolchain is None else str(toolchain.python)
        return cls(kind, python, folder, environment, interpreter)

    @property
    def log(self) -> Path:
        """Return the log of a server."""
        return self.folder / f"{self.kind.name}.log"

    def connect_or_start(self, address: Path, idle_s: float) -> ServerHandle:
        """Connect to the server at ``address``, or start it there."""
        with registry.locked(address.parent):
            record = registry.read_record(address)
            control = registry.connect(address) if record is not None else None
            if record is not None and control is not None:
                return self._handle(control, record.process)
            registry.remove(address)  # of a server that was killed
            registry.retire_others(address, self.log)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(address))
                listener.listen(_BACKLOG)
                handle = self.start(listener, path=str(address), idle_s=idle_s)
            process = Process.of(handle.server.pid)
            try:
                registry.write_record(
                    address,
                    registry.ServerRecord(
                        process.pid, process.started, self.kind.name, self.python, str(self.log)
                    ),
                )
            except OSError:
                handle.close()
                raise
        return handle

    def start(self, listener: socket.socket | None = None, **start: object) -> ServerHandle:
        """Start a server. Without ``listener``, only this process knows it."""
        control, remote = socket.socketpair()
        start["control"] = remote.fileno()
        descriptors = [remote.fileno()]
        if listener is not None:
            start["listener"] = listener.fileno()
            descriptors.append(listener.fileno())
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        try:
            process = subprocess.Popen(
                self.command(start),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=split_environment(self.environment)[0],
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C must not reach a server that other runs use
            )
        except OSError:
            control.close()
            raise
        finally:
            remote.close()
            os.close(output)
        return self._handle(control, process)

    def _handle(
        self, control: socket.socket, server: subprocess.Popen[bytes] | Process
    ) -> ServerHandle:
        per_job = split_environment(self.environment)[1]
        return ServerHandle(control, server, log=self.log, environment=per_job)

    def command(self, start: Message) -> list[str]:
        """Return the command line of a worker process.

        It runs in ``folder``: `-m` imports from the current one first, and a project may contain
        its own ``onnx.py``.
        """
        start = {**start, "preload": self.kind.preload, "without": self.kind.without}
        return [self.python, "-m", "buildsys.workers.server", json.dumps(start)]


def start_server(
    kind: ServerKind, toolchain: Toolchain | None, folder: Path, texts: TextCache | None = None
) -> ServerHandle:
    """Return a server for jobs of one kind, preferably a running one.

    ``folder`` receives its log. ``texts`` caches facts about the libraries that it loads.
    Raises: OSError: it cannot be started. UsageError: BUILDSYS_WORKER_IDLE is not a duration.
    """
    launch = Launch.of(kind, toolchain, folder)
    idle_s = registry.idle_limit_s(os.environ)
    servers = registry.server_folder(os.environ) if idle_s > 0 else None
    if servers is not None:
        digest = fingerprint(
            kind,
            python=launch.python,
            environment=split_environment(launch.environment)[0],
            folder=folder,
            interpreter=launch.interpreter,
            texts=texts,
        )
        # a full disk, or a lock that is never released: an unlisted server needs neither
        with contextlib.suppress(OSError):
            return launch.connect_or_start(registry.address(servers, digest), idle_s)
    return launch.start()


def start_in_foreground(job: Job, folder: Path, request: Path) -> subprocess.Popen[bytes]:
    """Start the process of ``job`` on this terminal; ``request`` has the rest."""
    launch = Launch.of(server_kind_of(job), toolchain_of(job), folder)
    return subprocess.Popen(
        launch.command({"request": str(request), "parent": os.getpid()}),
        cwd=folder,
        env={**launch.environment, **job.environment},
    )


def check_toolchain(job: Job, toolchain: Toolchain, log: Path | None) -> Unavailable | None:
    """Write the result file of ``job`` if its toolchain is unusable. Return the reason, or None.

    Without ``log``, output of the interpreter is printed.
    Raises: StageError: the interpreter hangs or crashes; the next attempt may succeed.
    """
    check = check_interpreter(toolchain)
    try:
        if not check.require().finds("numpy"):
            problem = f"the toolchain {toolchain.name} has no numpy"
            raise Unavailable(problem, f"{toolchain.pip} numpy")
    except StageError as error:
        if log is None:
            sys.stderr.write(printable(check.output))
        else:
            with contextlib.suppress(OSError):  # the error itself says what matters
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text(f"# {job.target}\n{check.output}\n{error}\n", encoding="utf-8")
        if not isinstance(error, Unavailable):
            if log is not None:
                error.hint = f"{error.hint}; full log: {job.display_path(log)}"
            raise
        result = StageResult("unavailable", error.problem, error.hint)
        now = datetime.now(timezone.utc)
        write_result(
            job, result, started=now, measured={"seconds": 0.0, "peak_rss_mib": 0.0}, versions={}
        )
        return error
    return None
