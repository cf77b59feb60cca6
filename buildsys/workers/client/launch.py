"""Start of worker servers, or connection to shared ones."""

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
from buildsys.workers.client.environment import fingerprint, server_environment, split_environment
from buildsys.workers.client.server_handle import ServerHandle
from buildsys.workers.job import Job, StageResult
from buildsys.workers.protocol import Message
from buildsys.workers.result_file import write_result
from buildsys.workers.server_kinds import ServerKind

_BACKLOG = 128  # connections waiting while a server still loads libraries


def start_server(
    kind: ServerKind,
    *,
    python: str,
    folder: Path,
    toolchain: Toolchain | None = None,
    texts: TextCache | None = None,
) -> ServerHandle:
    """Return a server for jobs of one kind, preferably a running one.

    ``folder`` receives its log. ``python`` is the interpreter of ``toolchain`` if that is given.
    ``texts`` caches facts about its libraries.
    Raises: OSError: it cannot be started. UsageError: BUILDSYS_WORKER_IDLE is not a duration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    interpreter = None if toolchain is None else check_interpreter(toolchain).require()
    path = None if interpreter is None else interpreter.path
    environment = server_environment(folder, os.environ, toolchain, path)
    lasting, per_job = split_environment(environment)
    launch = _Launch(kind, python, folder / f"{kind.name}.log", lasting, per_job, interpreter)
    idle_s = registry.idle_limit_s(os.environ)
    shared = registry.server_folder(os.environ) if idle_s > 0 else None
    # sharing requires the module path of the interpreter, which only a check or this process knows
    if shared is not None and (interpreter is not None or python == sys.executable):
        # a full disk or a lock that is never released: an own server needs neither
        with contextlib.suppress(OSError):
            return launch.find_or_start_shared(shared, idle_s, texts)
    control, remote = socket.socketpair()
    try:
        process = launch.spawn({"control": remote.fileno(), "parent": os.getpid()}, remote)
    except OSError:
        control.close()
        raise
    finally:
        remote.close()
    return ServerHandle(control, process, log=launch.log, environment=per_job, shared=False)


@dataclass(frozen=True)
class _Launch:
    """Everything a server is started from."""

    kind: ServerKind
    python: str
    log: Path
    lasting: Mapping[str, str]  # environment variables of the server
    per_job: Mapping[str, str]  # those sent with each job
    interpreter: Interpreter | None  # None: that of this process

    def find_or_start_shared(
        self, folder: Path, idle_s: float, texts: TextCache | None
    ) -> ServerHandle:
        """Connect to the server with the same fingerprint, or start it."""
        digest = fingerprint(
            self.kind,
            python=self.python,
            environment=self.lasting,
            folder=self.log.parent,
            interpreter=self.interpreter,
            texts=texts,
        )
        address = registry.address(folder, digest)
        with registry.locked(folder):
            record = registry.read_record(address)
            control = registry.connect(address) if record is not None else None
            if record is not None and control is not None:
                return ServerHandle(
                    control, record.process, log=self.log, environment=self.per_job, shared=True,
                    ready=record.ready,
                )  # fmt: skip
            registry.remove(address)  # of a server that was killed
            registry.retire_others(address, self.log)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(address))
                listener.listen(_BACKLOG)
                start = {"listener": listener.fileno(), "path": str(address), "idle_s": idle_s}
                process = self.spawn(start, listener)
            ticks = Process.of(process.pid).started
            record = registry.ServerRecord(
                process.pid, ticks, self.kind.name, self.python, str(self.log)
            )
            try:
                registry.write_record(address, record)
                control = registry.connect(address)
                if control is None:
                    raise ConnectionRefusedError(f"cannot connect to {address}")
            except OSError:  # no other run would ever find it
                process.kill()
                process.wait()
                raise
        return ServerHandle(control, process, log=self.log, environment=self.per_job, shared=True)

    def spawn(self, start: Message, channel: socket.socket) -> subprocess.Popen[bytes]:
        start = {**start, "preload": self.kind.preload, "without": self.kind.without}
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        try:
            return subprocess.Popen(
                [self.python, "-m", "buildsys.workers.server.server", json.dumps(start)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # `-m` imports from here first, and a project may contain its own onnx.py
                cwd=self.log.parent,
                env=dict(self.lasting),
                pass_fds=[channel.fileno()],
                # Ctrl-C must not reach a server that other runs use
                start_new_session="listener" in start,
            )
        finally:
            os.close(output)


def check_toolchain(job: Job, toolchain: Toolchain, log: Path | None) -> Unavailable | None:
    """Write the result file of ``job`` if its toolchain is unusable. Return the reason, or None.

    Without ``log``, output of the interpreter is printed.
    Raises: StageError: the interpreter hangs or crashes; the next attempt may succeed.
    """
    check = check_interpreter(toolchain)
    try:
        interpreter = check.require()
        if not interpreter.finds("numpy"):
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
