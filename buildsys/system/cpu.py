"""The processor of this machine, and how busy it is with other things than this process."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_IDLE_FIELDS = (3, 4)  # idle and iowait in the first line of /proc/stat


def cpu_model() -> str:
    """Return the processor's name as its maker writes it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def usable_cores() -> int:
    """Return how many physical cores this process may use: two threads of one core count once."""
    allowed = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else range(os.cpu_count() or 1)
    )
    cores = {_siblings(cpu) for cpu in allowed}
    return max(1, len(cores))


def load_average() -> list[float]:
    """Return the machine's load over 1, 5 and 15 minutes, or nothing where it is unknown."""
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except (OSError, AttributeError):
        return []


class OtherLoad:
    """How much of the machine other processes use between the start and a later look."""

    def __init__(self, ours: Sequence[int] = ()) -> None:
        """Begin to look; ``ours`` are the numbers of processes that work for this one."""
        self._ours = tuple(ours)
        self._start = _times()
        self._own_start = self._own_ticks()

    def share(self) -> float | None:
        """Return the share of all processors' time since the start that others used; None where unknown."""
        now = _times()
        if now is None or self._start is None:
            return None
        busy, total = now[0] - self._start[0], now[1] - self._start[1]
        own = self._own_ticks() - self._own_start
        return min(1.0, max(0.0, (busy - own) / total)) if total else 0.0

    def _own_ticks(self) -> float:
        own = time.process_time() * os.sysconf("SC_CLK_TCK")
        return own + sum(_ticks_of(pid) for pid in self._ours)


def _siblings(cpu: int) -> str:
    try:
        return Path(_TOPOLOGY.format(cpu)).read_text().strip()
    except OSError:
        return str(cpu)


def _ticks_of(pid: int) -> int:
    """Return the processor time of another process in clock ticks; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _times() -> tuple[int, int] | None:
    """Return busy and total time of all processors together, in clock ticks."""
    try:
        fields = [
            int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        ]
    except (OSError, ValueError):
        return None
    return sum(fields) - sum(fields[index] for index in _IDLE_FIELDS), sum(fields)
