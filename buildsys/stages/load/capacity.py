"""The largest rate within a limit on the 99th percentile: a short search and its interval.

Rates rise until one is certainly beyond the limit, or two in turn are beyond it. A few more halve
the gap around the capacity, which is interpolated between its ends. Latencies in a queue depend on
each other, so the interval of a percentile comes from resampled blocks of consecutive requests.

Source: H. R. Künsch, "The jackknife and the bootstrap for general stationary observations" (1989).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from buildsys.stages.load.result import LoadPoint

SHARES = (0.25, 0.5, 0.7, 0.85, 0.95, 1.05)  # of the rate without breaks
LEAST_REQUESTS = 200  # fewer say nothing about a 99th percentile
_STEPS = 3  # further rates
_BLOCKS, _RESAMPLES = 20, 200
_ENDS = (2.5, 97.5)


class Capacity(NamedTuple):
    """The largest rate within the limit; ``low`` is surely within, ``high`` surely beyond."""

    rate_per_s: float
    low: float
    high: float | None  # None: no rate was surely beyond
    is_least: bool
    decisive: tuple[LoadPoint, ...]  # next to it


def p99_interval(latencies_ms: Sequence[float]) -> list[float] | None:
    """Compute the 95 % interval of the 99th percentile; None with too few requests."""
    if len(latencies_ms) < LEAST_REQUESTS:
        return None
    blocks = np.array_split(np.asarray(latencies_ms), _BLOCKS)
    choices = np.random.default_rng(0).integers(_BLOCKS, size=(_RESAMPLES, _BLOCKS))
    resampled = [np.percentile(np.concatenate([blocks[n] for n in row]), 99) for row in choices]
    return [float(end) for end in np.percentile(resampled, _ENDS)]


def explore(
    measure: Callable[[float], LoadPoint], rates: Iterable[float], limit_ms: float
) -> tuple[list[LoadPoint], bool]:
    """Measure rising ``rates`` up to the limit, and further ones around the capacity.

    The second result is true if ``measure`` raised TimeoutError, as its time was over.
    """
    points: list[LoadPoint] = []
    is_cut = False
    try:
        for rate in sorted(rates):
            points.append(measure(rate))
            are_beyond = [point["p99_ms"] > limit_ms for point in points]
            # a single one may have met a disturbance
            if _interval(points[-1])[0] > limit_ms or are_beyond[-2:] == [True, True]:
                break
        for _ in range(_STEPS):
            within, beyond = _bracket(points, limit_ms)
            if beyond is None:
                break
            low = within["rate_per_s"] if within else 0.0
            points.append(measure((low + beyond["rate_per_s"]) / 2))
    except TimeoutError:
        is_cut = True
    return sorted(points, key=lambda point: point["rate_per_s"]), is_cut


def find_capacity(points: Sequence[LoadPoint], limit_ms: float) -> Capacity:
    """Interpolate the rate at which the 99th percentile reaches the limit."""
    within, beyond = _bracket(points, limit_ms)
    low = within["rate_per_s"] if within else 0.0
    rate = low
    if within and beyond:
        logs = [math.log(point["p99_ms"]) for point in (within, beyond)]
        share = (math.log(limit_ms) - logs[0]) / (logs[1] - logs[0])
        rate += share * (beyond["rate_per_s"] - low)
    surely = [p["rate_per_s"] for p in points if _interval(p)[1] <= limit_ms]
    never = [p["rate_per_s"] for p in points if _interval(p)[0] > limit_ms]
    last = max((end for end in surely if end <= rate), default=0.0)
    first = min((end for end in never if end > rate), default=None)
    decisive = tuple(point for point in (within, beyond) if point)
    return Capacity(rate, last, first, beyond is None and within is not None, decisive)


def _bracket(
    points: Sequence[LoadPoint], limit_ms: float
) -> tuple[LoadPoint | None, LoadPoint | None]:
    """Choose the largest rate within the limit, and the smallest one beyond it above."""
    ordered = sorted(points, key=lambda point: point["rate_per_s"])
    place = max((n for n, p in enumerate(ordered) if p["p99_ms"] <= limit_ms), default=-1)
    above = ordered[place + 1 :]
    return ordered[place] if place >= 0 else None, above[0] if above else None


def _interval(point: LoadPoint) -> tuple[float, float]:
    ends = point["p99_interval_ms"]
    return (ends[0], ends[1]) if ends else (0.0, math.inf)
