"""Axes of charts: positions in percent of the width, and ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
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
        """Choose an axis around all ``values`` with a margin on both sides.

        Values that cannot be shown (NaN, infinite, not positive on a logarithmic axis) are left
        out; without any the axis is from 1 to 10.
        """
        numbers = [v for v in values if math.isfinite(v) and (v > 0 or not is_log)]
        if not numbers:
            return cls(1.0, 10.0, is_log)
        low, high = min(numbers), max(numbers)
        if is_log:
            room = math.exp(max(math.log(high / low) * margin, 0.02))
            return cls(low / room, high * room, is_log=True)
        span = high - low or abs(high) * 0.1 or 1.0
        return cls(low - span * margin, high + span * margin)

    def at(self, value: float) -> float:
        """Place a value; NaN is at the end, like too large values."""
        if math.isnan(value) or value >= self.high:
            return 100.0
        if value <= self.low:
            return 0.0
        if self.is_log:
            return 100 * math.log(value / self.low) / math.log(self.high / self.low)
        return 100 * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """List at most six round values on the axis."""
        exponents = range(_exponent(self.low), _exponent(self.high) + 1) if self.is_log else ()
        for steps in (_STEPS, _STEPS[:1]):
            values = [step * 10.0**exponent for exponent in exponents for step in steps]
            values = [value for value in values if self.low <= value <= self.high]
            if 2 <= len(values) <= _MOST_TICKS:
                return values
        if len(values) > _MOST_TICKS:
            return values[:: math.ceil(len(values) / _MOST_TICKS)]
        step = round_step(self.high - self.low, _MOST_TICKS)
        numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return [number * step for number in numbers]


def round_step(span: float, most: int) -> float:
    """Choose the smallest 1, 2 or 5 times a power of ten of which fewer than ``most`` fit."""
    size = 10.0 ** _exponent(span / most)
    return next((step * size for step in _STEPS if span / (step * size) < most), 10 * size)


def _exponent(value: float) -> int:
    return math.floor(math.log10(value))
