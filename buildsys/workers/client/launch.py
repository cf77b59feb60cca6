"""Starts worker servers: one of this run's own, or one that other runs find as well."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from buildsys.system.interpreters.interpreter import Interpreter
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.system.processes import Process
from buildsys.workers import registry
from buildsys.workers.client.fingerprint import fingerprint
from buildsys.workers.client.server_handle import OwnServer, ServerHandle, SharedServer
from buildsys.workers.environment import (
    server_environment,
    split_environment,
    toolchain_environment,
)
from buildsys.workers.protocol import Message
from buildsys.workers.server_kinds import Profile

_QUEUE = 128  # of connections that a server which still loads has not taken yet


def start_server(
    profile: Profile, *, python: str, folder: Path, elsewhere: Elsewhere | None = None
) -> ServerHandle:
    """Return a server for jobs of a kind: one that runs already where that is as good as a new one.

    ``folder`` takes its log. With ``elsewhere`` it runs in that interpreter instead of ``python``.
    Raises: OSError: the interpreter cannot be started. UsageError: BUILDSYS_WORKER_IDLE is not a duration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    identity = None
    if elsewhere is None:
        environment = server_environment(folder, os.environ)
    else:
        identity, python = elsewhere.identity, str(elsewhere.toolchain.python)
        environment = toolchain_environment(folder, os.environ, elsewhere.toolchain, identity.path)
    lasting, passing = split_environment(environment)
    start = _Start(profile, python, folder / f"{profile.name}.log", lasting, passing, identity)
    idle_s = registry.idle_limit_s(os.environ)
    home = registry.server_folder(os.environ) if idle_s > 0 else None
    # of an interpreter that was not asked it is not known where it looks for modules
    if home is not None and (identity is not None or python == sys.executable):
        with contextlib.suppress(
            OSError
        ):  # a full disk, a lock that is never let go: one of our own needs neither
            return start.shared(home, idle_s)
    return start.own()


class Elsewhere(NamedTuple):
    """A toolchain and what its interpreter is."""

    toolchain: Toolchain
    identity: Interpreter


@dataclass(frozen=True)
class _Start:
    """What a server is started from."""

    profile: Profile
    python: str
    log: Path
    lasting: Mapping[str, str]  # environment variables for as long as it lives
    passing: Mapping[str, str]  # those of each job
    identity: Interpreter | None  # of an interpreter that is not this process's

    def own(self) -> OwnServer:
        """Start a server that ends with this process."""
        control, remote = socket.socketpair()
        try:
            process = self._spawn({"control": remote.fileno(), "parent": os.getpid()}, remote)
        except OSError:
            control.close()
            raise
        finally:
            remote.close()
        return OwnServer(control, process, log=self.log, environment=self.passing)

    def shared(self, home: Path, idle_s: float) -> SharedServer:
        """Connect to the server that was started from the same, or start it."""
        mark = fingerprint(
            self.profile,
            python=self.python,
            environment=self.lasting,
            folder=self.log.parent,
            identity=self.identity,
        )
        path = registry.address(home, mark)
        with registry.locked(home):
            record = registry.read_record(path)
            control = registry.connect(path) if record is not None else None
            if record is not None and control is not None:
                return self._handle(control, record.process, ready=record.ready)
            registry.remove(path)  # left behind by one that was killed
            registry.retire_others(path, self.log)
            return self._start_listening(path, idle_s)

    def _start_listening(self, path: Path, idle_s: float) -> SharedServer:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(_QUEUE)
            process = self._spawn(
                {"listener": listener.fileno(), "path": str(path), "idle_s": idle_s}, listener
            )
        server = Process.of(process.pid)
        record = registry.Record(
            server.pid, server.started, self.profile.name, self.python, str(self.log)
        )
        try:
            registry.write_record(path, record)
            control = registry.connect(path)
            if control is None:
                raise ConnectionRefusedError(f"cannot connect to {path}")
        except OSError:  # nobody would ever find it
            process.kill()
            process.wait()
            raise
        return self._handle(control, server, started=process)

    def _handle(
        self,
        control: socket.socket,
        server: Process,
        *,
        started: subprocess.Popen[bytes] | None = None,
        ready: bool = False,
    ) -> SharedServer:
        return SharedServer(
            control, server, log=self.log, environment=self.passing, started=started, ready=ready
        )

    def _spawn(self, start: Message, channel: socket.socket) -> subprocess.Popen[bytes]:
        start = {**start, "preload": self.profile.preload, "without": self.profile.without}
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        try:
            return subprocess.Popen(
                [self.python, "-m", "buildsys.workers.server.main", json.dumps(start)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.log.parent,  # `-m` looks there first, and a project may hold an onnx.py of its own
                env=dict(self.lasting),
                pass_fds=[channel.fileno()],
                start_new_session="listener"
                in start,  # Ctrl-C is not for a server that others use too
            )
        finally:
            os.close(output)
