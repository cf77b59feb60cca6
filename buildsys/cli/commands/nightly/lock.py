"""Lock of nightly runs, with the unfinished work of a run.

The kernel drops the lock with its process, while the file stays: whoever finds a running process in
a file without a lock knows that it was killed.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from buildsys.errors import StageError
from buildsys.system.files import open_lock, try_lock

_READ_LIMIT_S = 1.0  # for another process that has just taken the lock
_MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class NightlyRun:
    """A nightly run as recorded in the file of its lock."""

    started: str  # ISO, UTC
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    running: bool = True
    # start of the first of the runs before this one that were killed or interrupted
    since: str = ""
    # requested with --rebuild or --all and not done: target -> (what was requested, when)
    rebuilds: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return ``process 4711 on host, started 2026-11-22 02:00:00 UTC``."""
        started = self.started.replace("T", " ").replace("Z", " UTC")
        return f"process {self.pid} on {self.host}, started {started}"


class NightlyLock:
    """The lock of a project's nightly runs, held by this process."""

    def __init__(self, handle: int, previous: NightlyRun | None, run: NightlyRun) -> None:
        self._handle = handle
        self.previous = previous
        self.run = run
        self._write()

    def set_rebuilds(self, rebuilds: Mapping[str, tuple[str, str]]) -> None:
        """Record the remaining rebuilds."""
        self.run = replace(self.run, rebuilds=rebuilds)
        self._write()

    def end(self, *, finished: bool) -> None:
        """Record the end of the run."""
        self.run = replace(self.run, running=False, since="" if finished else self.run.since)
        self._write()

    def _write(self) -> None:
        content = json.dumps(asdict(self.run)).encode() + b"\n"
        try:
            os.pwrite(self._handle, content, 0)  # readers stop at the end of the line
            os.ftruncate(self._handle, len(content))
        except OSError as error:
            raise StageError(
                f"cannot write the lock of nightly runs: {error.strerror}",
                "check the owner of the folder and the free space",
            ) from None


@contextmanager
def hold_lock(path: Path, started: str) -> Iterator[NightlyLock]:
    """Hold the lock of nightly runs.

    Raises: StageError: another nightly run holds it, or the file cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open_lock(path, 0o644)
    except OSError as error:
        raise _cannot_lock(path, error) from None
    try:
        if not try_lock(handle):
            raise StageError(
                f"another nightly run is in progress: {_holder(handle)}",
                "wait until it has finished",
            )
        previous = _read(handle)
        run = NightlyRun(started, since=started)
        if previous is not None:
            run = replace(run, since=previous.since or started, rebuilds=previous.rebuilds)
        yield NightlyLock(handle, previous, run)
    except OSError as error:
        raise _cannot_lock(path, error) from None
    finally:
        os.close(handle)


def _cannot_lock(path: Path, error: OSError) -> StageError:
    problem = f"cannot lock {path}: {error.strerror}"
    return StageError(problem, "check the permissions of its folder, and the free space")


def _holder(handle: int) -> str:
    deadline = time.monotonic() + _READ_LIMIT_S
    while True:
        found = _read(handle)
        # until the holder has written it, the file has the run before
        if found is not None and found.running and _is_alive(found):
            return str(found)
        if time.monotonic() > deadline:
            return "its process is unknown"
        time.sleep(0.01)


def _is_alive(run: NightlyRun) -> bool:
    return run.host != socket.gethostname() or Path(f"/proc/{run.pid}").exists()


def _read(handle: int) -> NightlyRun | None:
    """Return the recorded run, None if it is missing or damaged."""
    line = os.pread(handle, _MOST_BYTES, 0).partition(b"\n")[0]
    try:
        match json.loads(line):
            case {
                "started": str(started),
                "pid": int(pid),
                "host": str(host),
                "running": bool(running),
                "since": str(since),
                "rebuilds": dict(rebuilds),
            }:
                kept = {
                    target: (what, when)
                    for target, entry in rebuilds.items()
                    if isinstance(entry, list) and [*map(type, entry)] == [str, str]
                    for what, when in (entry,)
                }
                return NightlyRun(started, pid, host, running, since, kept)
    except (ValueError, RecursionError):
        pass
    return None
