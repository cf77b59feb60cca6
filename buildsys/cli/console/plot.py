"""Plots of plain characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from buildsys.report.formatting import align
from buildsys.report.html.charts import round_step

_MOST_STEPS = 7  # between the extremes: at most 8 lines
_WIDTH = 60  # with labels, less than 80 columns
_POINT, _BAR, _AXIS = "●", "│", "┤"
_ASCII = str.maketrans({_POINT: "*", _BAR: "|", _AXIS: "|"})
Interval = tuple[float, float]


def plot_lines(
    points: Sequence[tuple[float, Interval | None]], *, ascii_only: bool = False
) -> list[str]:
    """Return a plot of values and intervals, from left to right.

    Each line is a round level, as in the charts of pages. Of more points than columns, the last
    are shown.
    """
    shown = [
        (value, span or (value, value))
        for value, span in points[-_WIDTH:]
        if all(map(math.isfinite, (value, *(span or ()))))
    ]
    if not shown:
        return []
    bottom, top = min(low for _, (low, _) in shown), max(high for _, (_, high) in shown)
    least = 0.02 * abs(top) or 1.0  # a flat line stays flat
    if top - bottom < least:
        center = (top + bottom) / 2
        bottom, top = center - least / 2, center + least / 2

    level = round_step(top - bottom, _MOST_STEPS)
    first, last = round(bottom / level), round(top / level)

    def row(value: float) -> int:
        return last - round(value / level)

    step = max(1, min(4, _WIDTH // len(shown)))
    grid = [[" "] * (step * len(shown)) for _ in range(first, last + 1)]
    for number, (value, (low, high)) in enumerate(shown):
        for y in range(row(high), row(low) + 1):
            grid[y][number * step] = _BAR
        grid[row(value)][number * step] = _POINT
    decimals = max(0, -math.floor(math.log10(level)))
    labels = align([[f"{n * level:,.{decimals}f}"] for n in range(last, first - 1, -1)], [True])
    lines = [
        f"{label[0]} {_AXIS} {''.join(cells)}".rstrip()
        for label, cells in zip(labels, grid, strict=True)
    ]
    return [line.translate(_ASCII) for line in lines] if ascii_only else lines
