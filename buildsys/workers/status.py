"""Worker servers of this user, listed and stopped for ``doit workers``."""

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
    state: str  # idle | working
    memory_mib: float


def list_servers(environment: Mapping[str, str]) -> list[RunningServer]:
    """List this user's running servers, and remove the records of others."""
    folder = server_folder(environment)
    if folder is None:
        return []
    servers = []
    try:
        with locked(folder):
            for path in sorted(folder.glob("*.sock")):
                record = read_record(path)
                if record is None or not record.process.is_running:
                    remove(path)
                    continue
                with contextlib.suppress(OSError):  # it has just ended
                    servers.append(_examine(path, record))
    except OSError as error:
        problem = f"cannot look for worker servers in {folder}: {error.strerror}"
        raise StageError(problem, "check the permissions of the folder") from None
    return servers


def _examine(path: Path, record: ServerRecord) -> RunningServer:
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    pages = int(Path("/proc", str(record.pid), "statm").read_text().split()[1])
    age_s = uptime_s - record.started / os.sysconf("SC_CLK_TCK")
    state = "working" if children_of(record.pid) else "idle"
    memory_mib = pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    return RunningServer(path, record, age_s, state, memory_mib)


def stop_servers(environment: Mapping[str, str], *, now: bool = True) -> list[RunningServer]:
    """End all servers of this user, and list them.

    They end ``now``, with their jobs, or after the runs that they serve.
    """
    servers = list_servers(environment)
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


def format_running(servers: Sequence[RunningServer]) -> list[str]:
    """Format a table of servers, the youngest last."""
    if not servers:
        return ["no worker servers"]
    rows = [("pid", "kind", "age", "state", "memory", "python", "project")]
    for server in sorted(servers, key=lambda server: -server.age_s):
        record, age_s = server.record, server.age_s
        age = f"{age_s:.0f} s" if age_s < 100 else f"{age_s / 60:.0f} min"
        memory = f"{server.memory_mib:.0f} MiB"
        rows.append(
            (str(record.pid), record.kind, age, server.state, memory, record.python, record.project)
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def format_stopped(servers: Sequence[RunningServer]) -> list[str]:
    """Format one line per server, ended or still at work."""
    lines = []
    for server in servers:
        record = server.record
        line = f"{record.pid} ({record.kind}, {record.project})"
        still = f"{line} ends with the run that it serves; `doit workers --now` ends it at once"
        lines.append(still if record.process.is_running else f"ended {line}")
    return lines or ["no worker servers"]
