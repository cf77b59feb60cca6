"""Axes of charts: positions in percent of the width, and ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_MOST_TICKS = 6
_STEPS = (1.0, 2.0, 5.0)


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic axis: ``low`` at 0, ``high`` at 100."""

    low: float
    high: float
    is_log: bool = False

    @classmethod
    def around(cls, values: Iterable[float], *, is_log: bool = False, margin: float = 0.06) -> Axis:
        """Return an axis around all ``values`` with a margin on both sides.

        Values that cannot be shown (NaN, infinite, not positive on a logarithmic axis) are left
        out; without any the axis is from 1 to 10.
        """
        shown = [v for v in values if math.isfinite(v) and (v > 0 or not is_log)]
        if not shown:
            return cls(1.0, 10.0, is_log)
        low, high = min(shown), max(shown)
        if is_log:
            span = max(math.log(high / low), 0.1)
            room = math.exp(max(span * margin, 0.02))
            return cls(low / room, high * room, is_log=True)
        span = high - low or abs(high) * 0.1 or 1.0
        return cls(low - span * margin, high + span * margin)

    def at(self, value: float) -> float:
        """Return the position of ``value``.

        NaN is at the end, like too large values.
        """
        if math.isnan(value) or value >= self.high:
            return 100.0
        if value <= self.low:
            return 0.0
        if self.is_log:
            return 100 * math.log(value / self.low) / math.log(self.high / self.low)
        return 100 * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return at most six round values on the axis."""
        if self.is_log:
            found = [
                step * 10.0**exponent
                for exponent in range(_exponent(self.low), _exponent(self.high) + 1)
                for step in _STEPS
            ]
            found = [one for one in found if self.low <= one <= self.high]
            if len(found) > _MOST_TICKS:
                found = [one for one in found if f"{one:e}".startswith("1.0")]
            if len(found) > _MOST_TICKS:
                return found[:: math.ceil(len(found) / _MOST_TICKS)]
            if len(found) >= 2:
                return found
        return list(_linear_ticks(self.low, self.high))


def _linear_ticks(low: float, high: float) -> Iterator[float]:
    step = round_step(high - low, _MOST_TICKS)
    first = math.ceil(low / step)
    for index in range(first, math.floor(high / step) + 1):
        yield index * step


def round_step(span: float, most: int) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten of which fewer than ``most`` fit."""
    size = 10.0 ** _exponent(span / most)
    return next((one * size for one in _STEPS if span / (one * size) < most), 10 * size)


def _exponent(value: float) -> int:
    return math.floor(math.log10(value))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of ordered values, interpolated."""
    place = share * (len(ordered) - 1)
    index = math.floor(place)
    following = ordered[min(index + 1, len(ordered) - 1)]
    return ordered[index] + (following - ordered[index]) * (place - index)
