"""The processor of this machine, and how busy it is with other things than this process."""

from __future__ import annotations

import os
import platform
import time
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
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
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

    def __init__(self) -> None:
        self._start = _times()
        self._own_start = time.process_time()

    def share(self) -> float | None:
        """Return the share of all processors' time since the start that others used; None where unknown."""
        now = _times()
        if now is None or self._start is None:
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        busy, total = now[0] - self._start[0], now[1] - self._start[1]
        own = (time.process_time() - self._own_start) * ticks
        return min(1.0, max(0.0, (busy - own) / total)) if total else 0.0


def _siblings(cpu: int) -> str:
    try:
        return Path(_TOPOLOGY.format(cpu)).read_text().strip()
    except OSError:
        return str(cpu)


def _times() -> tuple[int, int] | None:
    """Return busy and total time of all processors together, in clock ticks."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(fields) - sum(fields[index] for index in _IDLE_FIELDS), sum(fields)
