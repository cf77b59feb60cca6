"""What the console knows of each target, and how durations read."""

from __future__ import annotations

from dataclasses import dataclass

ENDED = ("passed", "restored", "unavailable", "failed")


@dataclass
class Line:
    """One target of a run."""

    target: str
    model: str
    stage: str
    variant: str
    status: str = (
        "not run"  # not run | running | passed | restored | fresh | unavailable | failed | ignored
    )
    began: float = 0.0  # monotonic clock
    seconds: float | None = None
    why: str = ""  # why it runs
    message: str = ""  # its last progress message
    reason: str = ""  # why it failed, is unavailable or did not run
    log: str = ""  # where its log lies, if there is one


def duration(seconds: float) -> str:
    """Return a duration to a tenth of a second, from a minute on in minutes and seconds."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min"
