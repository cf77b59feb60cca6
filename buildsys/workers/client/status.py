"""What ``doit workers`` shows of the servers that outlive a run, and how it ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from buildsys.errors import StageError
from buildsys.workers.registry import (
    Record,
    locked,
    read_record,
    record_path,
    remove,
    server_folder,
)

_STOP_LIMIT_S = 2.0


@dataclass(frozen=True)
class RunningServer:
    """A server as ``doit workers`` shows it."""

    record: Record
    age_s: float
    idle_s: float | None  # None: it is at work, or still loads
    memory_mib: float


def list_servers(environment: Mapping[str, str]) -> list[RunningServer]:
    """Return the servers of this user that are running, and clear away what others have left behind."""
    folder = server_folder(environment)
    if folder is None:
        return []
    found = []
    try:
        lock = contextlib.ExitStack()
        lock.enter_context(locked(folder))
    except OSError as error:
        raise StageError(f"cannot look for worker servers in {folder}: {error.strerror}") from None
    with lock:
        for path in sorted(folder.glob("*.sock")):
            record = read_record(path)
            if record is None or not record.process.is_running:
                remove(path)
            else:
                found.append(_described(path, record))
    return found


def stop_servers(environment: Mapping[str, str]) -> list[RunningServer]:
    """End all servers of this user, with what runs in them; return them."""
    running = list_servers(environment)
    for server in running:
        server.record.process.send_signal(signal.SIGTERM)
    for server in running:
        if not server.record.process.wait(_STOP_LIMIT_S):  # in the middle of loading a library
            server.record.process.send_signal(signal.SIGKILL)
            server.record.process.wait(_STOP_LIMIT_S)
    return running


def running_text(running: Sequence[RunningServer]) -> str:
    """Return a table of servers, the youngest last."""
    if not running:
        return "no worker servers\n"
    rows = [("pid", "profile", "age", "idle", "memory", "python", "project")]
    for server in sorted(running, key=lambda server: -server.age_s):
        record, busy = server.record, "at work" if server.record.ready else "loading"
        idle = busy if server.idle_s is None else _duration(server.idle_s)
        memory = f"{server.memory_mib:.0f} MiB"
        rows.append(
            (
                str(record.pid),
                record.profile,
                _duration(server.age_s),
                idle,
                memory,
                record.python,
                record.project,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "".join(f"{line}\n" for line in lines)


def stopped_text(stopped: Sequence[RunningServer]) -> str:
    """Return one line per server that was ended."""
    told = (
        f"ended {server.record.pid} ({server.record.profile}, {server.record.project})\n"
        for server in stopped
    )
    return "".join(told) or "no worker servers\n"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _described(path: Path, record: Record) -> RunningServer:
    process = Path("/proc", str(record.pid))
    try:
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
        memory_mib = (
            int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
        )
        children = (process / "task" / str(record.pid) / "children").read_text().split()
        quiet_s = max(0.0, time.time() - record_path(path).stat().st_mtime)
    except OSError:  # it has just ended
        return RunningServer(record, 0.0, 0.0, 0.0)
    # one child waits for the next job
    age_s = uptime_s - record.started / os.sysconf("SC_CLK_TCK")
    return RunningServer(
        record, age_s, None if len(children) > 1 or not record.ready else quiet_s, memory_mib
    )
