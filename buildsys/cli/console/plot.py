"""Plots of plain characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from buildsys.report.formatting import align, significant

_HEIGHT = 7
_WIDTH = 60  # with labels, less than 80 columns
_POINT, _BAR, _AXIS = "●", "│", "┤"
_ASCII = str.maketrans({_POINT: "*", _BAR: "|", _AXIS: "|"})
Interval = tuple[float, float]


def plot_lines(
    points: Sequence[tuple[float, Interval | None]], *, ascii_only: bool = False
) -> list[str]:
    """Return a plot of values and intervals, from left to right.

    Of more points than columns, the last are shown.
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

    def row(value: float) -> int:
        return round((top - value) / (top - bottom) * (_HEIGHT - 1))

    step = max(1, min(4, _WIDTH // len(shown)))
    grid = [[" "] * (step * len(shown)) for _ in range(_HEIGHT)]
    for number, (value, (low, high)) in enumerate(shown):
        for y in range(row(high), row(low) + 1):
            grid[y][number * step] = _BAR
        grid[row(value)][number * step] = _POINT
    values = [top - y * (top - bottom) / (_HEIGHT - 1) for y in range(_HEIGHT)]
    labels = align([[significant(value, 4)] for value in values], [True])
    lines = [
        f"{label[0]} {_AXIS} {''.join(cells)}".rstrip()
        for label, cells in zip(labels, grid, strict=True)
    ]
    return [line.translate(_ASCII) for line in lines] if ascii_only else lines
