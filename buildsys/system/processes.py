"""A process that is not a child of this one: whether it lives, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


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


def _started(pid: int) -> int:
    """Return when a process started, in clock ticks; 0 when it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return 0
    return 0 if state in "ZX" else int(fields[18])
