"""One target of a run, as the console shows it."""

from __future__ import annotations

from dataclasses import dataclass

ENDED = ("passed", "restored", "unavailable", "failed")


@dataclass
class TargetLine:
    """State of one target."""

    target: str
    model: str
    stage: str
    variant: str
    status: str = "not run"  # or running, fresh, ignored, or one of ENDED
    began: float = 0.0  # monotonic clock
    seconds: float | None = None
    why: str = ""  # why it runs
    message: str = ""  # its last progress message
    reason: str = ""  # why it failed, is unavailable or did not run
    log: str = ""  # path of its log, if not already in the reason
