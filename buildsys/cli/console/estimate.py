"""Estimate of a run's remaining time from the usual times of its targets."""

from __future__ import annotations

import time
from collections.abc import Mapping

from buildsys.cli.console.lines import ConsoleLine
from buildsys.cli.session import Session
from buildsys.execution.freshness import FRESH
from buildsys.report.formatting import duration
from buildsys.stages.table import stage_info

_RESTORED_S = 0.2
_LEAST_LEFT = 0.1  # share of the usual time left to a target that exceeds it


class Estimate:
    """The remaining time of a run: the median times of earlier runs, or their stages' defaults.

    Raises: BuildsysError, OSError, ValueError: the state cannot be read.
    """

    def __init__(self, session: Session, lines: Mapping[str, ConsoleLine]) -> None:
        self._lines = lines
        self._jobs = session.jobs
        self._usual_s: dict[str, float] = {}  # of the targets that will probably run
        self._never_built: set[str] = set()
        waiting = [name for name, line in lines.items() if line.status in ("not run", "running")]
        for target, state in session.executor.forecast(waiting).items():
            if state.state == FRESH and not session.always:
                continue
            usual_s = _RESTORED_S if state.restorable else state.expected_s
            if usual_s is None:
                action = session.actions[target]
                usual_s = action.usual_s or stage_info(action.stage).usual_s
                self._never_built.add(target)
            self._usual_s[target] = usual_s

    def __str__(self) -> str:
        """Write ``about 3 min left``, or ``~3 min left, first build``."""
        total_s, new_s = 0.0, 0.0
        for target, usual_s in self._usual_s.items():
            line = self._lines[target]
            if line.status not in ("running", "not run") or line.reason:
                continue
            taken_s = time.monotonic() - line.began if line.status == "running" else 0.0
            left_s = max(usual_s - taken_s, _LEAST_LEFT * usual_s)
            total_s += left_s
            new_s += left_s if target in self._never_built else 0.0
        left = _rounded(total_s / self._jobs)
        return f"~{left} left, first build" if new_s > total_s / 2 else f"about {left} left"


def _rounded(seconds: float) -> str:
    """Write a duration without more digits than an estimate has."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return duration(60 * round(seconds / 60)).removesuffix(" 0 s")
