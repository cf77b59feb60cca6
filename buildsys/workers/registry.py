"""The folder of this user's shared servers: their sockets, records and lock.

Each server has a socket and a JSON record; one lock serves them all. Whoever connects to a server,
starts one or retires one holds the lock, so nobody connects to a server that is ending.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import socket
import stat
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from buildsys.errors import UsageError
from buildsys.system import file_locks
from buildsys.system.files import replace_file
from buildsys.system.processes import Process
from buildsys.workers.protocol import encode

IDLE_VARIABLE = "BUILDSYS_WORKER_IDLE"
_DEFAULT_IDLE_S = 300.0
_UNITS_S = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}
_NAME_LENGTH = 20  # of a fingerprint's 64 digits, to keep within the limit of socket addresses
_ADDRESS_LIMIT = 107
_LOCK_LIMIT_S = 5.0  # it is held for milliseconds
_CONNECT_LIMIT_S = 1.0


def idle_limit_s(environment: Mapping[str, str]) -> float:
    """Return the lifetime of an idle server. 0: it ends with its run.

    Raises: UsageError: BUILDSYS_WORKER_IDLE is not a duration.
    """
    text = environment.get(IDLE_VARIABLE, "").strip()
    if not text:
        return _DEFAULT_IDLE_S
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|)", text)
    if found is None:
        hint = "write 300, 300s, 5min or 1h; 0 keeps no servers"
        raise UsageError(f"{IDLE_VARIABLE}={text} is not a duration", hint)
    return float(found[1]) * _UNITS_S[found[2]]


@dataclass(frozen=True)
class ServerRecord:
    """The record of a server."""

    pid: int
    started: int
    kind: str
    python: str
    log: str
    ready: bool = False  # True once its libraries are loaded

    @property
    def process(self) -> Process:
        """Return the server's process."""
        return Process(self.pid, self.started)

    @property
    def project(self) -> str:
        """Return the project it serves; its log is in ``PROJECT/.buildsys/workers``."""
        return str(Path(self.log).parents[2])


def server_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of this user's servers, created if necessary. None if none is safe.

    It must belong to this user alone: anyone with write access could impersonate a server.
    """
    if sys.platform != "linux":  # elsewhere neither peer nor start time of a process is known
        return None
    runtime = environment.get("XDG_RUNTIME_DIR")
    fallback = Path(f"/tmp/buildsys-{os.getuid()}/workers")  # noqa: S108 - ownership is checked
    for folder in (*([Path(runtime) / "buildsys"] if runtime else []), fallback):
        if len(os.fsencode(address(folder, "f" * _NAME_LENGTH))) > _ADDRESS_LIMIT:
            continue
        with contextlib.suppress(OSError):
            for part in (folder.parent, folder):
                with contextlib.suppress(FileExistsError):
                    part.mkdir(mode=0o700)
                found = part.lstat()
                owned = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
                if not owned or found.st_mode & 0o077:
                    break
            else:
                return folder
    return None


def address(folder: Path, fingerprint: str) -> Path:
    """Return the socket address of the server with a fingerprint."""
    return folder / f"{fingerprint[:_NAME_LENGTH]}.sock"


@contextlib.contextmanager
def locked(folder: Path, limit_s: float = _LOCK_LIMIT_S) -> Iterator[None]:
    """Hold the lock of ``folder``. Raises: BlockingIOError: not released within ``limit_s``."""
    with file_locks.locked(folder / "lock", timeout_s=limit_s, mode=0o600):
        yield


def connect(path: Path) -> socket.socket | None:
    """Return a connection to the server at ``path``. None unless this user's server listens."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # a stopped server accepts nothing once its queue is full
        channel.settimeout(_CONNECT_LIMIT_S)
        channel.connect(str(path))
        channel.settimeout(None)
        if peer_uid(channel) == os.geteuid():
            return channel
    except OSError:
        pass  # nobody listens
    channel.close()
    return None


def peer_uid(channel: socket.socket) -> int:
    """Return the user id at the other end."""
    size = struct.calcsize("3i")
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, uid, _ = struct.unpack("3i", credentials)
    return int(uid)


def record_path(path: Path) -> Path:
    """Return the record file of the server at ``path``."""
    return path.with_suffix(".json")


def read_record(path: Path) -> ServerRecord | None:
    """Return the record of the server at ``path``. None without a valid one."""
    try:
        return ServerRecord(**json.loads(record_path(path).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def write_record(path: Path, record: ServerRecord) -> None:
    """Write the record of the server at ``path`` atomically."""
    replace_file(record_path(path), json.dumps(dataclasses.asdict(record)).encode())


def remove(path: Path) -> None:
    """Remove socket and record of the server at ``path``."""
    path.unlink(missing_ok=True)
    record_path(path).unlink(missing_ok=True)


def retire_others(path: Path, log: Path) -> None:
    """Retire the other servers of this kind and project."""
    for other in path.parent.glob("*.sock"):
        record = read_record(other)
        if other == path or record is None or record.log != str(log):
            continue
        channel = connect(other)
        if channel is None:
            remove(other)
            continue
        with channel, contextlib.suppress(OSError):
            channel.sendall(encode({"retire": True}))
