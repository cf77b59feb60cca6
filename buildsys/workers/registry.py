"""The servers of this user that outlive a run: where they are found, who they are, and how they are ended.

A server is three things in one folder: a socket, a record (JSON) beside it, and a lock that all share. Whoever
connects to a server, starts one or takes one out of service holds the lock, so nobody meets one that is ending.
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
_NAME_LENGTH = 20  # of a fingerprint's 64 digits: an address of a socket has room for 107 bytes
_ADDRESS_LIMIT = 107
_LOCK_LIMIT_S = 5.0  # held for milliseconds by anyone who is not stopped
_CONNECT_LIMIT_S = 1.0


def idle_limit_s(environment: Mapping[str, str]) -> float:
    """Return how long a server without work stays; 0: it ends with the run that started it.

    Raises: UsageError: BUILDSYS_WORKER_IDLE says something else than a time.
    """
    text = environment.get(IDLE_VARIABLE, "").strip()
    if not text:
        return _DEFAULT_IDLE_S
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|)", text)
    if found is None:
        raise UsageError(
            f"{IDLE_VARIABLE}={text} is not a duration",
            "write 300, 300s, 5min or 1h; 0 keeps no servers",
        )
    return float(found[1]) * _UNITS_S[found[2]]


@dataclass(frozen=True)
class Record:
    """What a server's record says."""

    pid: int
    started: int
    profile: str
    python: str
    log: str
    ready: bool = False

    @property
    def process(self) -> Process:
        """The server itself."""
        return Process(self.pid, self.started)

    @property
    def project(self) -> str:
        """The project that it was started for; its log lies in ``PROJECT/.buildsys/workers``."""
        return str(Path(self.log).parents[2])


def server_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of this user's servers, made if need be; None where no place is safe.

    Anyone who can write there could pose as a server, so it must belong to this user alone.
    """
    if (
        sys.platform != "linux"
    ):  # there is no telling who is at the other end, nor a tie between two lives
        return None
    runtime = environment.get("XDG_RUNTIME_DIR")
    shared = Path(f"/tmp/buildsys-{os.getuid()}/workers")  # noqa: S108 - whose it is, is checked
    for folder in (*([Path(runtime) / "buildsys"] if runtime else []), shared):
        if len(os.fsencode(address(folder, "f" * _NAME_LENGTH))) <= _ADDRESS_LIMIT and _is_made(
            folder
        ):
            return folder
    return None


def address(folder: Path, fingerprint: str) -> Path:
    """Return where the server with a fingerprint listens."""
    return folder / f"{fingerprint[:_NAME_LENGTH]}.sock"


@contextlib.contextmanager
def locked(folder: Path, limit_s: float = _LOCK_LIMIT_S) -> Iterator[None]:
    """Hold the lock of the folder. Raises: BlockingIOError: somebody else has held it for all of ``limit_s``."""
    with file_locks.locked(folder / "lock", timeout_s=limit_s, mode=0o600):
        yield


def connect(path: Path) -> socket.socket | None:
    """Return a connection to the server that listens at ``path``; None when there is none, or a foreign one."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.settimeout(
            _CONNECT_LIMIT_S
        )  # one that was stopped takes no more once its queue is full
        channel.connect(str(path))
        channel.settimeout(None)
        if peer_uid(channel) == os.geteuid():
            return channel
    except OSError:
        pass  # nobody listens: there is nothing more to know
    channel.close()
    return None


def peer_uid(channel: socket.socket) -> int:
    """Return which user is at the other end."""
    _, uid, _ = struct.unpack(
        "3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return int(uid)


def record_path(path: Path) -> Path:
    """Return the record of the server that listens at ``path``."""
    return path.with_suffix(".json")


def read_record(path: Path) -> Record | None:
    """Return the record of the server that listens at ``path``, None when there is none to read."""
    try:
        return Record(**json.loads(record_path(path).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def write_record(path: Path, record: Record) -> None:
    """Write the record of the server that listens at ``path``, whole or not at all."""
    replace_file(record_path(path), json.dumps(dataclasses.asdict(record)).encode())


def remove(path: Path) -> None:
    """Remove what a server at ``path`` is found by."""
    path.unlink(missing_ok=True)
    record_path(path).unlink(missing_ok=True)


def retire_others(path: Path, log: Path) -> None:
    """Let the idle servers end that do the same for the same project, but are not the one at ``path``."""
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


def _is_made(folder: Path) -> bool:
    try:
        for part in (folder.parent, folder):
            with contextlib.suppress(FileExistsError):
                part.mkdir(mode=0o700)
            found = part.lstat()
            if (
                not stat.S_ISDIR(found.st_mode)
                or found.st_uid != os.getuid()
                or found.st_mode & 0o077
            ):
                return False
    except OSError:
        return False
    return True
