"""Shared worker servers, listed and stopped for ``doit workers``."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from buildsys.errors import StageError
from buildsys.system.processes import children_of
from buildsys.workers.registry import (
    ServerRecord,
    locked,
    read_record,
    record_path,
    remove,
    retire,
    server_folder,
)

_STOP_LIMIT_S = 2.0


@dataclass(frozen=True)
class RunningServer:
    """A running server, as ``doit workers`` shows it."""

    address: Path
    record: ServerRecord
    age_s: float
    idle_s: float | None  # None: it is working or loading
    memory_mib: float


def list_servers(environment: Mapping[str, str]) -> list[RunningServer]:
    """Return this user's running servers, and remove the records of others."""
    folder = server_folder(environment)
    if folder is None:
        return []
    found = []
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except OSError as error:
            problem = f"cannot look for worker servers in {folder}: {error.strerror}"
            raise StageError(problem, "check the permissions of the folder") from None
        for path in sorted(folder.glob("*.sock")):
            record = read_record(path)
            if record is None or not record.process.is_running:
                remove(path)
                continue
            process = Path("/proc", str(record.pid))
            try:
                uptime_s = float(Path("/proc/uptime").read_text().split()[0])
                pages = int((process / "statm").read_text().split()[1])
                idle_s = max(0.0, time.time() - record_path(path).stat().st_mtime)
            except OSError:  # it has just ended
                found.append(RunningServer(path, record, 0.0, 0.0, 0.0))
                continue
            age_s = uptime_s - record.started / os.sysconf("SC_CLK_TCK")
            busy = bool(children_of(record.pid)) or not record.ready
            memory_mib = pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
            idle = None if busy else idle_s
            found.append(RunningServer(path, record, age_s, idle, memory_mib))
    return found


def retire_servers(environment: Mapping[str, str]) -> list[RunningServer]:
    """End idle servers of this user at once, others after their runs.

    Returns them as they were before.
    """
    running = list_servers(environment)
    for server in running:
        retire(server.address)
    deadline = time.monotonic() + _STOP_LIMIT_S
    for server in running:
        if server.idle_s is not None:  # a run that it serves may be between two jobs
            server.record.process.wait(deadline - time.monotonic())
    return running


def stop_servers(environment: Mapping[str, str]) -> list[RunningServer]:
    """End all servers of this user with their jobs, and return them."""
    running = list_servers(environment)
    for server in running:
        server.record.process.send_signal(signal.SIGTERM)
    for server in running:
        if not server.record.process.wait(_STOP_LIMIT_S):  # it is loading a library
            server.record.process.send_signal(signal.SIGKILL)
            server.record.process.wait(_STOP_LIMIT_S)
    return running


def format_running(running: Sequence[RunningServer]) -> list[str]:
    """Return a table of servers, the youngest last."""
    if not running:
        return ["no worker servers"]

    def duration(seconds: float) -> str:
        return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"

    rows = [("pid", "kind", "age", "idle", "memory", "python", "project")]
    for server in sorted(running, key=lambda server: -server.age_s):
        record = server.record
        busy = "working" if record.ready else "loading"
        idle = busy if server.idle_s is None else duration(server.idle_s)
        age, memory = duration(server.age_s), f"{server.memory_mib:.0f} MiB"
        rows.append(
            (str(record.pid), record.kind, age, idle, memory, record.python, record.project)
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def format_stopped(stopped: Sequence[RunningServer]) -> list[str]:
    """Return one line per server, ended or still at work."""
    lines = []
    for server in stopped:
        record = server.record
        line = f"{record.pid} ({record.kind}, {record.project})"
        still = f"{line} ends with the run that it serves; `doit workers --now` ends it at once"
        lines.append(still if record.process.is_running else f"ended {line}")
    return lines or ["no worker servers"]
