"""One target of a run, as the console shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from buildsys.report.formatting import duration
from buildsys.system.files import read_end
from buildsys.system.printable import printable_line

ENDED = ("passed", "restored", "unavailable", "noisy", "failed")
OBVIOUS = ("never built", "requested")  # reasons in the executor's words, not repeated
_TAIL_BYTES = 4096  # bytes at the end of a log


@dataclass(slots=True)
class ConsoleLine:
    """One target of a run."""

    target: str
    model: str
    stage: str
    variant: str
    status: str = "not run"  # or running, fresh, ignored, or one of ENDED
    began: float = 0.0  # monotonic clock
    seconds: float | None = None
    why: str = ""  # why it runs
    message: str = ""  # its last progress message
    counter: str = ""  # samples, tactics or cases so far
    log_file: Path | None = None  # while it runs
    figure: str = ""  # its key figure
    reason: str = ""  # why it failed, is unavailable or noisy, or did not run
    log: str = ""  # path of its log, if not already in the reason
    recorded: bool = False  # unavailable or noisy in an earlier run, and not run in this one

    @property
    def has_ended(self) -> bool:
        """True if this run has built, restored or failed it."""
        return self.status in ENDED and not self.recorded

    def forget_activity(self) -> None:
        """Drop what only a running target shows."""
        self.message = self.counter = ""
        self.began = 0.0

    @property
    def took(self) -> str:
        """Its time, "" if there is none."""
        return "" if self.seconds is None else duration(self.seconds)

    @property
    def activity(self) -> str:
        """The present activity: counter, progress message and last log line."""
        why = "" if self.why in OBVIOUS else self.why
        logged = last_line(self.log_file) if self.log_file else ""
        # the counter first: a narrow terminal cuts the rest
        parts = (self.counter, self.message or why, "" if logged == self.message else logged)
        return " · ".join(printable_line(part) for part in parts if part)


def target_line(target: str, status: str = "not run") -> ConsoleLine:
    """Return the line of a target without a state."""
    stage, model, variant = (*target.split(":", 2), "")[:3]
    return ConsoleLine(target, model, stage, variant, status)


def last_line(log: Path) -> str:
    """Return the last line of a log, "" without one.

    A progress bar's last state counts.
    """
    lines = read_end(log, _TAIL_BYTES).replace("\r", "\n").split("\n")
    found = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return "" if found.startswith("# ") else found  # our header
