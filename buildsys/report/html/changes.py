"""Past builds of an engine, and the differences between the last two."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.result_files import NOISY, PASSED
from buildsys.stages.bench.result import is_recorded_noisy
from buildsys.stages.table import BENCH, ENGINE, VERIFY

_SMALL = 0.02  # a smaller change of a latency without interval is no difference


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
        """Read a finite figure, None if it is not known."""
        match self.figures.get(name):
            case (int() | float()) as value if math.isfinite(value):
                return float(value)
            case _:
                return None

    def interval(self, name: str) -> tuple[float, float] | None:
        """Read an interval, None if it is not known."""
        match self.figures.get(name):
            case [int() | float() as low, int() | float() as high]:
                return (low, high) if math.isfinite(low) and math.isfinite(high) else None
            case _:
                return None


@dataclass(frozen=True)
class EngineHistory:
    """The builds of one engine's targets, newest first."""

    engine: str
    built: tuple[PastBuild, ...] = ()
    verified: tuple[PastBuild, ...] = ()
    timed: tuple[PastBuild, ...] = ()


@dataclass(frozen=True)
class PageChange:
    """A figure of the last build against the one before."""

    what: str
    text: str
    trend: str  # better, worse, same, or "" for a note


def changes(history: EngineHistory, stages: Collection[str]) -> Iterator[PageChange]:
    """Yield changes of latency, size and error by ``stages``, with the build's reason.

    Only builds that passed are compared.
    """
    builds = {ENGINE: history.built, VERIFY: history.verified, BENCH: history.timed}
    builds = {stage: own if stage in stages else () for stage, own in builds.items()}
    figures = (
        ("p50", BENCH, "latency_p50_ms", q.significant, " ms"),
        ("size", ENGINE, "bytes", q.size, ""),
        ("error", VERIFY, "relative", q.error, ""),
    )
    for what, stage, figure, show, unit in figures:
        passed = [build for build in builds[stage] if build.status == PASSED]
        if stage == BENCH:
            passed = [build for build in passed if build.trusted_latency is not None]
        new, old = ([build.number(figure) for build in passed[:2]] + [None] * 2)[:2]
        if old is None or new is None:
            continue
        texts = show(old), show(new)
        text, note = f"{texts[0]} → {texts[1]}{unit}", ""
        if stage == BENCH and _is_close(*passed[:2]):
            note = f"no significant change: {text}"
        elif stage != BENCH and texts[0] == texts[1]:
            note = f"unchanged: {texts[1]}"
        ratio = f"{q.change(new / old - 1)}: " if old else ""
        trend = "same" if note else "worse" if new > old else "better"
        yield PageChange(f"{what} of {history.engine}", note or f"{ratio}{text}", trend)
    first = [own[0] for own in builds.values() if own]
    newest = max(first, key=lambda build: build.started, default=None)
    if newest is not None and any(len(own) > 1 for own in builds.values()):
        notes = (("built because", newest.why), ("environment", newest.mark))
        yield from (PageChange(what, text, "") for what, text in notes if text)


def _is_close(new: PastBuild, old: PastBuild) -> bool:
    """Compare two latencies, by their intervals if known."""
    new_ms, old_ms = new.trusted_latency, old.trusted_latency
    ends, old_ends = (build.interval("latency_interval_ms") for build in (new, old))
    if ends and old_ends:
        return ends[0] <= old_ends[1] and old_ends[0] <= ends[1]
    return abs(new_ms / old_ms - 1) < _SMALL if new_ms and old_ms else new_ms == old_ms
