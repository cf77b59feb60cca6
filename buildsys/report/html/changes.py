"""Differences between the last two builds of an engine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.results.bench import is_recorded_noisy
from buildsys.report.results.reader import NOISY, PASSED

_SMALL = 0.02  # of a latency without interval; below, no difference is claimed


@dataclass(frozen=True)
class PastBuild:
    """One build of one target."""

    started: str  # ISO 8601, UTC
    status: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    commit: str = ""  # abbreviated, with a mark if the tree was dirty
    why: str = ""  # the reasons of the build
    mark: str = ""  # differences to the environment of the build before

    @property
    def trusted_latency(self) -> float | None:
        """The median latency in ms, None of a noisy or failed benchmark."""
        is_trusted = self.status == PASSED and not self.is_noisy
        return self.number("latency_p50_ms") if is_trusted else None

    @property
    def is_noisy(self) -> bool:
        """True for a benchmark without a steady median."""
        return self.status == NOISY or is_recorded_noisy(self.figures)

    def number(self, name: str) -> float | None:
        """Return a finite figure, None if it is not known."""
        value = self.figures.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if math.isfinite(value) else None

    def interval(self, name: str) -> tuple[float, float] | None:
        """Return an interval, None if it is not known."""
        found = self.figures.get(name)
        if not isinstance(found, (list, tuple)) or len(found) != 2:
            return None
        if not all(isinstance(end, (int, float)) and math.isfinite(end) for end in found):
            return None
        return float(found[0]), float(found[1])


@dataclass(frozen=True)
class Change:
    """A figure of the last build against the one before."""

    what: str
    text: str
    trend: str  # better, worse, same, or "" for a note


def changes(
    engine: str,
    built: Sequence[PastBuild],
    verified: Sequence[PastBuild],
    timed: Sequence[PastBuild],
) -> Iterator[Change]:
    """Yield changes of size, error and latency, with the build's reason.

    The builds of each target are the newest first; only those that passed are compared.
    """
    yield from _latency(engine, [build for build in timed if build.trusted_latency is not None])
    figures = ("size", built, "bytes", q.size), ("error", verified, "relative", q.error)
    for what, builds, figure, show in figures:
        pair = _last_two([build for build in builds if build.status == PASSED], figure)
        if pair is not None:
            old, new = map(show, pair)
            text = f"unchanged: {new}" if old == new else f"{old} → {new}"
            yield _change(f"{what} of {engine}", pair, text)
    newest = max((*built[:1], *verified[:1], *timed[:1]), key=lambda one: one.started, default=None)
    if newest is not None and max(map(len, (built, verified, timed))) > 1:
        if newest.why:
            yield Change("built because", newest.why, "")
        if newest.mark:
            yield Change("environment", newest.mark, "")


def _latency(engine: str, builds: Sequence[PastBuild]) -> Iterator[Change]:
    pair = _last_two(builds, "latency_p50_ms")
    if pair is None:
        return
    old, new = pair
    one, two = (build.interval("latency_interval_ms") for build in builds[:2])
    is_same = abs(new / old - 1) < _SMALL if old else new == old
    if one and two:
        is_same = one[0] <= two[1] and two[0] <= one[1]
    text = f"{q.significant(old)} → {q.significant(new)} ms"
    yield _change(f"p50 of {engine}", pair, f"no significant change: {text}" if is_same else text)


def _last_two(builds: Sequence[PastBuild], figure: str) -> tuple[float, float] | None:
    """Return a figure of the last two builds, None if unknown."""
    if len(builds) < 2:
        return None
    new, old = (build.number(figure) for build in builds[:2])
    return None if old is None or new is None else (old, new)


def _change(what: str, pair: tuple[float, float], text: str) -> Change:
    old, new = pair
    if ":" in text:  # a note on an unchanged figure
        return Change(what, text, "same")
    ratio = f"{q.change(new / old - 1)}: " if old else ""
    return Change(what, ratio + text, "worse" if new > old else "better")
