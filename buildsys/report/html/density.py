"""Densities of latencies as curves, over the logarithm of an axis."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from buildsys.report.html.axes import Axis, quantile
from buildsys.report.html.svg import short

_BINS = 120
_PLACES = [round(1000 * n / (_BINS - 1)) for n in range(_BINS)]  # in a picture
_HEIGHT = 36  # pixels
_SCALE = 10  # units of a pixel, so that a curve has integers only
_FEWEST = 8  # samples; fewer are drawn as single ticks


def positive(samples: Sequence[float]) -> list[float]:
    """Return the finite positive samples, ordered."""
    if not samples or not (math.isfinite(sum(samples)) and min(samples) > 0):
        samples = [one for one in samples if math.isfinite(one) and one > 0]
    return sorted(samples)


def bin_edges(axis: Axis) -> list[float]:
    """Return the edges of the bins on an axis."""
    step = (axis.high / axis.low) ** (1 / _BINS)
    return [axis.low * step**n for n in range(_BINS + 1)]


def density(
    axis: Axis, edges: Sequence[float], ordered: Sequence[float], kind: str, y: float
) -> str:
    """Return the density of positive samples over the logarithm of the axis.

    ``edges`` are those of the bins.
    """
    if len(ordered) < _FEWEST:
        ticks = (f"M{short(axis.at(value) * 10)} {_HEIGHT * _SCALE}v-160" for value in ordered)
        curve = f'<path class="line {kind}" d="{"".join(ticks)}"/>'
    else:
        # ordered samples are counted by the edges: a million take no longer than a hundred
        below = [bisect_right(ordered, edge) for edge in edges]
        quartiles = axis.at(quantile(ordered, 0.75)) - axis.at(quantile(ordered, 0.25))
        width = max(0.9 * quartiles / 100 * _BINS / 1.34 * len(ordered) ** -0.2, 0.7)
        reach = math.ceil(3 * width)
        kernel = [math.exp(-0.5 * (d / width) ** 2) for d in range(-reach, reach + 1)]
        wide = [0.0] * (_BINS + 2 * reach)  # with room at both ends
        for n in range(_BINS):
            if count := below[n + 1] - below[n]:
                for d, weight in enumerate(kernel, n):
                    wide[d] += count * weight
        smooth = wide[reach : reach + _BINS]
        peak = max(smooth) or 1.0
        ys = [round(34 * _SCALE * height / peak) for height in smooth]
        path, last_x, last_y = f"M0 {_HEIGHT * _SCALE}l", 0, 0
        for n, (x, own) in enumerate(zip(_PLACES, ys, strict=True)):
            if any(ys[max(n - 1, 0) : n + 2]):  # a flat run needs its two ends only
                path += f" {x - last_x} {last_y - own}"
                last_x, last_y = x, own
        path = path.replace("l ", "l").replace(" -", "-")
        curve = f'<path class="area {kind}" d="{path}V{_HEIGHT * _SCALE}H1000Z"/>'
    return (
        f'<svg y="{short(y)}" width="100%" height="{_HEIGHT}"'
        f' viewBox="0 0 1000 {_HEIGHT * _SCALE}" preserveAspectRatio="none">{curve}</svg>'
    )
