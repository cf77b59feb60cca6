"""The servers of this user that outlive a run: where they are found, who they are, and how they are ended.

A server is three things in one folder: a socket, a record (JSON) beside it, and a lock that all share. Whoever
connects to a server, starts one or takes one out of service holds the lock, so nobody meets one that is ending.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from buildsys.errors import UsageError
from buildsys.worker.protocol import encode

IDLE_VARIABLE = "BUILDSYS_WORKER_IDLE"
_DEFAULT_IDLE_S = 300.0
_UNITS_S = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}
_NAME_LENGTH = 20  # of a fingerprint's 64 digits: an address of a socket has room for 107 bytes
_ADDRESS_LIMIT = 107
_LOCK_LIMIT_S = 5.0  # held for milliseconds by anyone who is not stopped
_CONNECT_LIMIT_S = 1.0
_STOP_LIMIT_S = 2.0


def idle_limit_s(environment: Mapping[str, str]) -> float:
    """Return how long a server without work stays; 0: it ends with the run that started it.

    Raises: UsageError: BUILDSYS_WORKER_IDLE says something else than a time.
    """
    text = environment.get(IDLE_VARIABLE, "").strip()
    if not text:
        return _DEFAULT_IDLE_S
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|)", text)
    if found is None:
        raise UsageError(f"{IDLE_VARIABLE}={text} is not a time", "write 300, 300s, 5min or 1h; 0 keeps no servers")
    return float(found[1]) * _UNITS_S[found[2]]


@dataclass(frozen=True)
class Process:
    """One process, told from a later one with the same number by when it started."""

    pid: int
    started: int  # clock ticks since the machine booted

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process that has the number ``pid`` now."""
        return cls(pid, _started(pid))

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.started > 0 and _started(self.pid) == self.started

    def ends_within(self, limit_s: float) -> bool:
        """Wait until it has ended; return whether it did in time."""
        deadline = time.monotonic() + limit_s
        while self.lives:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.lives:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


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
    def project(self) -> Path:
        """The project that it was started for; its log lies in ``PROJECT/.buildsys/workers``."""
        return Path(self.log).parents[2]


@dataclass(frozen=True)
class RunningServer:
    """A server as ``doit workers`` shows it."""

    record: Record
    age_s: float
    idle_s: float | None  # None: it is at work
    memory_mib: float


def server_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of this user's servers, made if need be; None where no place is safe.

    Anyone who can write there could pose as a server, so it must belong to this user alone.
    """
    if sys.platform != "linux":  # there is no telling who is at the other end, nor a tie between two lives
        return None
    runtime = environment.get("XDG_RUNTIME_DIR")
    shared = Path(f"/tmp/buildsys-{os.getuid()}/workers")  # noqa: S108 - whose it is, is checked
    for folder in (*([Path(runtime) / "buildsys"] if runtime else []), shared):
        if len(os.fsencode(address(folder, "f" * _NAME_LENGTH))) <= _ADDRESS_LIMIT and _is_made(folder):
            return folder
    return None


def address(folder: Path, fingerprint: str) -> Path:
    """Return where the server with a fingerprint listens."""
    return folder / f"{fingerprint[:_NAME_LENGTH]}.sock"


@contextlib.contextmanager
def locked(folder: Path, limit_s: float = _LOCK_LIMIT_S) -> Iterator[None]:
    """Hold the lock of the folder. Raises: BlockingIOError: somebody else has held it for all of ``limit_s``."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + limit_s
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.005)
        yield
    finally:
        os.close(handle)


def connect(path: Path) -> socket.socket | None:
    """Return a connection to the server that listens at ``path``; None when there is none, or a foreign one."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.settimeout(_CONNECT_LIMIT_S)  # one that was stopped takes no more once its queue is full
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
    _, uid, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
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
    file = record_path(path)
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(dataclasses.asdict(record)), encoding="utf-8")
    fresh.replace(file)


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


def list_servers(environment: Mapping[str, str]) -> list[RunningServer]:
    """Return the servers of this user that are running, and clear away what others have left behind."""
    folder = server_folder(environment)
    if folder is None:
        return []
    found = []
    with locked(folder):
        for path in sorted(folder.glob("*.sock")):
            record = read_record(path)
            if record is None or not record.process.lives:
                remove(path)
            else:
                found.append(_described(path, record))
    return found


def stop_servers(environment: Mapping[str, str], tell: Callable[[RunningServer], None]) -> None:
    """End all servers of this user, with what runs in them; each is told once it has ended."""
    running = list_servers(environment)
    for server in running:
        server.record.process.terminate()
    for server in running:
        if not server.record.process.ends_within(_STOP_LIMIT_S):  # in the middle of loading a library
            server.record.process.kill()
            server.record.process.ends_within(_STOP_LIMIT_S)
        tell(server)


def _described(path: Path, record: Record) -> RunningServer:
    process = Path("/proc", str(record.pid))
    try:
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
        memory_mib = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
        works = bool((process / "task" / str(record.pid) / "children").read_text())
        quiet_s = max(0.0, time.time() - record_path(path).stat().st_mtime)
    except OSError:  # it has just ended
        return RunningServer(record, 0.0, 0.0, 0.0)
    age_s = uptime_s - record.started / os.sysconf("SC_CLK_TCK")
    return RunningServer(record, age_s, None if works or not record.ready else quiet_s, memory_mib)


def _started(pid: int) -> int:
    """Return when a process started, in clock ticks; 0 when it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return 0
    return 0 if state in "ZX" else int(fields[18])


def _is_made(folder: Path) -> bool:
    try:
        for part in (folder.parent, folder):
            with contextlib.suppress(FileExistsError):
                part.mkdir(mode=0o700)
            found = part.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
                return False
    except OSError:
        return False
    return True
