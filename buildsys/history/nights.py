"""Figures of a gate's earlier runs: one value per night and build.

Runs on one day are one night: they share the state of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from buildsys.history.builds import RAN, Build
from buildsys.history.database import History
from buildsys.history.gates import MOST_EARLIER, MOST_RECENT
from buildsys.history.statistics import median

_DAY_S = 86_400
_READ = 500  # runs, the newest ones
_ACCEPTED = ("passed", "unavailable")  # a build without a baseline is one for the next
_MEASURED = (*_ACCEPTED, "noisy", "failed")
_COMPARED = ("device:", "env:")
_LIBRARIES = ("tool:",)
Values = dict[str, list[float]]  # by figure


class Nights(NamedTuple):
    """Medians by night, newest first."""

    tonight: Values  # all runs of this build today
    recent: Values  # this build, before
    earlier: Values  # other builds that were accepted


class PresentBuild(NamedTuple):
    """The build that a gate compares: an engine with its libraries."""

    target: str  # the gate
    machine_id: str
    parts: Mapping[str, str]  # of the key: environment and libraries
    engine: str  # digest
    project: str = ""  # builds of an unknown project belong to every project


def gate_nights(history: History, build: PresentBuild, *, pinned: str = "") -> Nights:
    """Return the nights of a gate on this machine in its present environment.

    Only the engine ``pinned`` counts as earlier, if there is one.
    """
    today = int(max(time.time(), history.last_position(build.machine_id)) // _DAY_S)
    runs: dict[bool, dict[int, list[Mapping[str, object]]]] = {True: {}, False: {}}
    for run, is_ours in _comparable_runs(history, build):
        is_earlier = run.status in _ACCEPTED and _engine(run) == (pinned or _engine(run))
        if run.status in _MEASURED if is_ours else is_earlier:
            day = int(run.position // _DAY_S)
            runs[is_ours].setdefault(day, []).append(run.figures)
    tonight = _by_figure(runs[True].pop(today, []))
    return Nights(
        tonight,
        _medians(list(runs[True].values())[: MOST_RECENT - 1]),
        _medians(list(runs[False].values())[:MOST_EARLIER]),
    )


def last_accepted_engine(history: History, build: PresentBuild) -> str:
    """Return the digest of the last accepted engine before a build, "" without one."""
    for run, is_ours in _comparable_runs(history, build):
        found = _engine(run)
        if not is_ours and run.status in _ACCEPTED and found and isinstance(found, str):
            return found
    return ""


def _comparable_runs(history: History, build: PresentBuild) -> Iterator[tuple[Build, bool]]:
    """Yield measured runs, newest first, and if they are of this build."""
    target, here, parts, engine, project = build
    environments: dict[str, dict[str, str]] = {}
    for run in history.builds(target=target, machine_id=here, project=project, limit=_READ):
        if run.environment not in environments:
            environments[run.environment] = history.environment(run)
        then = environments[run.environment]
        if run.how == RAN and run.machine_id == here and not _differ(_COMPARED, then, parts):
            yield run, _engine(run) == engine and not _differ(_LIBRARIES, then, parts)


def _engine(run: Build) -> object:
    return run.figures.get("engine")


def _differ(prefixes: tuple[str, ...], then: Mapping[str, str], now: Mapping[str, str]) -> bool:
    then, now = (
        {label: value for label, value in one.items() if label.startswith(prefixes)}
        for one in (then, now)
    )
    return then != now


def _medians(nights: list[list[Mapping[str, object]]]) -> Values:
    found: Values = {}
    for runs in nights:
        for name, values in _by_figure(runs).items():
            found.setdefault(name, []).append(median(values))
    return found


def _by_figure(runs: list[Mapping[str, object]]) -> Values:
    found: Values = {}
    for figures in runs:
        for name, value in figures.items():
            if isinstance(value, float) and value == value:
                found.setdefault(name, []).append(value)
    return found
