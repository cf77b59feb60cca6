"""The folder of this user's shared servers: their sockets, records and lock.

Each server has a socket and a JSON record; one lock serves them all. It is held to connect to a
server, to start one and to retire one, so that nobody connects to a server that is ending. The
folder belongs to this user alone, and so does the other end of every connection.
"""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import StageError
from buildsys.system import files
from buildsys.system.files import MAX_RESULT_BYTES, make_private, read_limited, replace_file
from buildsys.system.processes import Process, children_of, time_limit_s
from buildsys.workers.job import RETIRE

IDLE_VARIABLE = "BUILDSYS_WORKER_IDLE"
_DEFAULT_IDLE_S = 300.0
_NAME_LENGTH = 20  # digits; all 64 exceed the limit of socket addresses
_ADDRESS_LIMIT = 107
_LOCK_LIMIT_S = 5.0  # it is held for milliseconds
_CONNECT_LIMIT_S = 1.0
_STOP_LIMIT_S = 2.0


def idle_limit_s(environment: Mapping[str, str]) -> float:
    """Read the lifetime of an idle server. 0: it ends with its run."""
    return time_limit_s(environment, IDLE_VARIABLE, _DEFAULT_IDLE_S)


@dataclass(frozen=True)
class ServerRecord:
    """The record of a server."""

    pid: int
    started: int
    kind: str
    python: str
    log: str

    @property
    def process(self) -> Process:
        """Return the server's process."""
        return Process(self.pid, self.started)

    @property
    def project(self) -> str:
        """Return the project it serves; its log is in ``PROJECT/.buildsys/workers``."""
        return str(Path(self.log).parents[2])


def server_folder(environment: Mapping[str, str]) -> Path:
    """Find or create the folder of this user's servers.

    Raises: StageError: it does not belong to this user alone. Anyone with write access could
    impersonate a server.
    """
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    fallback = Path(f"/tmp/buildsys-{os.getuid()}/workers")  # noqa: S108 - ownership is checked
    # its specification: a relative path is invalid and to be ignored
    runtimes = [Path(runtime) / "buildsys"] if runtime.startswith("/") else []
    for folder in (*runtimes, fallback):
        if len(os.fsencode(address(folder, "f" * _NAME_LENGTH))) > _ADDRESS_LIMIT:
            continue
        with contextlib.suppress(OSError):
            if all(make_private(part) for part in (folder.parent, folder)):
                return folder
    problem = f"cannot start workers: {fallback} does not belong to you alone"
    raise StageError(problem, "remove it, or set XDG_RUNTIME_DIR to a folder of your own")


def address(folder: Path, fingerprint: str) -> Path:
    """Return the socket address of the server with a fingerprint."""
    return folder / f"{fingerprint[:_NAME_LENGTH]}.sock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``. Raises: BlockingIOError: another process does not release it."""
    with files.locked(folder / "lock", timeout_s=_LOCK_LIMIT_S, mode=0o600):
        yield


def connect(path: Path) -> socket.socket | None:
    """Connect to the server at ``path``. None if none listens."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # a stopped server accepts nothing once its queue is full
        channel.settimeout(_CONNECT_LIMIT_S)
        channel.connect(str(path))
        channel.settimeout(None)
    except OSError:
        channel.close()
        return None
    return channel


def record_path(path: Path) -> Path:
    """Return the record file of the server at ``path``."""
    return path.with_suffix(".json")


def read_record(path: Path) -> ServerRecord | None:
    """Read the record of the server at ``path``. None without a valid one."""
    try:
        return ServerRecord(**json.loads(read_limited(record_path(path), MAX_RESULT_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def write_record(path: Path, record: ServerRecord) -> None:
    """Write the record of the server at ``path`` atomically."""
    replace_file(record_path(path), json.dumps(dataclasses.asdict(record)).encode())


def remove(path: Path) -> None:
    """Remove socket and record of the server at ``path``."""
    path.unlink(missing_ok=True)
    record_path(path).unlink(missing_ok=True)


def retire(path: Path) -> None:
    """Let the server at ``path`` end with the runs that it serves."""
    if channel := connect(path):
        with channel, contextlib.suppress(OSError):
            channel.sendall(RETIRE)


class ServerConnection(NamedTuple):
    """A run's connection to a server."""

    address: Path
    control: socket.socket  # silent; it keeps the server alive
    process: Process
    popen: subprocess.Popen[bytes] | None  # None: started by an earlier run
    log: Path
    environment: Mapping[str, str]  # variables sent with each job
    idle_s: float  # the server's lifetime without a run


class RunningServer(NamedTuple):
    """A running server, as ``buildsys cache workers`` shows it."""

    address: Path
    record: ServerRecord
    state: str  # idle | working


def list_servers(environment: Mapping[str, str]) -> list[RunningServer]:
    """List this user's running servers, and remove the records of others."""
    folder, servers = server_folder(environment), []
    try:
        with locked(folder):
            for path in sorted(folder.glob("*.sock")):
                record = read_record(path)
                if record is None or not record.process.is_running:
                    remove(path)
                    continue
                state = "working" if children_of(record.pid) else "idle"
                servers.append(RunningServer(path, record, state))
    except OSError as error:
        problem = f"cannot look for worker servers in {folder}: {error.strerror}"
        raise StageError(problem, "check the permissions of the folder") from None
    return servers


def stop_servers(
    environment: Mapping[str, str], *, now: bool = True, state: Path | None = None
) -> list[RunningServer]:
    """End all servers of this user, or of the project with a state folder, and list them.

    They end ``now``, with their jobs, or after the runs that they serve.
    """
    servers = [
        server
        for server in list_servers(environment)
        if state is None or Path(server.record.log).is_relative_to(state)
    ]
    for server in servers:
        if now:
            server.record.process.send_signal(signal.SIGTERM)
        else:
            retire(server.address)
    deadline = time.monotonic() + _STOP_LIMIT_S
    for server in servers:
        if now or server.state == "idle":
            ended = server.record.process.wait(deadline - time.monotonic())
            if now and not ended:  # it is loading a library
                server.record.process.send_signal(signal.SIGKILL)
                server.record.process.wait(_STOP_LIMIT_S)
    return servers
