"""Estimate of a run's remaining time from its targets' usual times.

A target without history takes the usual time of its stage in other models, or else the default of
its stage. Both are an order of magnitude and shown as such.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from buildsys.cli.console.target_line import ConsoleLine
from buildsys.cli.session import Session
from buildsys.errors import BuildsysError
from buildsys.execution.freshness import FRESH
from buildsys.plan.action import Action
from buildsys.stages.table import stage_info

_RESTORED_S = 0.2
_PER_TARGET_S = 0.2  # for the process, digests and publishing
_MAGNITUDES = (1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000)
_KNOWN = 0.8  # share of the time that must be from history to show a figure
_LEAST_LEFT = 0.1  # share of the usual time left to a target that exceeds it


@dataclass(frozen=True)
class Remaining:
    """The time for the rest of a run."""

    seconds: float
    is_rough: bool = False  # mostly of targets without history

    def __str__(self) -> str:
        """Format as ``about 3 min left``, or ``~3 min left, first build``."""
        if not self.is_rough:
            return f"about {_rounded(self.seconds)} left"
        seconds = max(self.seconds, 1.0)
        nearest = min(_MAGNITUDES, key=lambda one: abs(math.log(one / seconds)))
        return f"~{_rounded(nearest)} left, first build"


class _Usual(NamedTuple):
    seconds: float
    is_known: bool  # from the target's history
    after: tuple[str, ...]  # not the action: its model would be planned again at every look
    exclusive: bool


class Estimate:
    """The remaining time of one run, from its targets' known times."""

    def __init__(self, session: Session, lines: Mapping[str, ConsoleLine], jobs: int) -> None:
        self._session = session
        self._lines = lines
        self._jobs = jobs
        self._usual: dict[str, _Usual] = {}  # the targets that will probably run
        self._is_complete = False
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Make ``learn`` return soon: the state is about to be closed."""
        self._stopped.set()

    def learn(self) -> None:
        """Look up the state and usual time of all unfinished targets.

        Runs in a thread, half of the time: the models of a large project take seconds.
        """
        unknown: list[str] = []
        known: dict[tuple[str, str], list[float]] = {}
        waiting = [line for line in self._lines.values() if line.status in ("not run", "running")]
        for _, lines in groupby(waiting, key=lambda line: line.model):
            started = time.monotonic()
            targets = [line.target for line in lines]
            try:
                found = self._session.executor.forecast(targets)
            except (BuildsysError, OSError, ValueError):  # the targets will report it
                found = {}
            for target, state in found.items():
                line = self._lines[target]
                if state.expected_s is not None:
                    known.setdefault((line.stage, line.variant), []).append(state.expected_s)
                if state.state == FRESH and not self._session.always:
                    continue
                action = self._session.actions[target]
                if state.restorable:
                    self._add(action, _RESTORED_S, is_known=True)
                elif state.expected_s is not None:
                    self._add(action, state.expected_s + _PER_TARGET_S, is_known=True)
                else:
                    self._add(action, default_s(action) + _PER_TARGET_S, is_known=False)
                    unknown.append(target)
            if self._stopped.wait(time.monotonic() - started):
                return
        medians = {kind: sorted(times)[len(times) // 2] for kind, times in known.items()}
        for target in unknown:
            line = self._lines[target]
            if (seconds := medians.get((line.stage, line.variant))) is not None:
                usual = self._usual[target]
                self._usual[target] = usual._replace(seconds=seconds + _PER_TARGET_S)
        self._is_complete = True

    def _add(self, action: Action, seconds: float, *, is_known: bool) -> None:
        before = (*action.after, *action.order)
        self._usual[action.target] = _Usual(seconds, is_known, before, action.exclusive)

    def remaining(self) -> Remaining | None:
        """Return the remaining time, None while it is unknown."""
        if not self._is_complete:
            return None
        now = time.monotonic()
        total, alone, unknown = 0.0, 0.0, 0.0
        ends: dict[str, float] = {}  # when each target ends, after those that it waits for
        for target, usual in self._usual.items():
            line = self._lines[target]
            if line.status not in ("running", "not run") or line.reason:
                continue
            seconds = usual.seconds
            if line.status == "running":
                seconds = _rest(usual, now - line.began)
            total += seconds
            alone += seconds if usual.exclusive else 0.0
            unknown += 0.0 if usual.is_known else seconds
            before = (ends.get(name, 0.0) for name in usual.after)
            ends[target] = seconds + max(before, default=0.0)
        shared = (total - alone) / self._jobs + alone  # nothing runs next to a benchmark
        longest = max(ends.values(), default=0.0)
        return Remaining(max(shared, longest), is_rough=unknown > (1 - _KNOWN) * total)


def _rest(usual: _Usual, taken_s: float) -> float:
    """Return the time left for a running target."""
    beyond_s = taken_s - usual.seconds
    # a first build of twice the default may well take four times as long
    least_s = 0.0 if usual.is_known else beyond_s
    return max(-beyond_s, least_s, _LEAST_LEFT * usual.seconds)


def default_s(action: Action) -> float:
    """Return the order of magnitude of an action's time."""
    return stage_info(action.stage).usual_s if action.usual_s is None else action.usual_s


def _rounded(seconds: float) -> str:
    """Return a duration without more digits than an estimate has."""
    if seconds < 3:
        return f"{max(1, round(seconds))} s"
    if seconds < 55:
        return f"{max(5, round(seconds / 5) * 5)} s"
    tens, minutes = round(seconds / 10) * 10, round(seconds / 60)
    if seconds < 175:
        return f"{tens // 60} min {tens % 60} s" if tens % 60 else f"{tens // 60} min"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
