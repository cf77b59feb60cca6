"""Chart of latency against error of a model's engines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import escape

from buildsys.report import formatting as q
from buildsys.report.html.axes import Axis
from buildsys.report.html.charts import Chart
from buildsys.report.html.svg import (
    CHARACTER,
    beside_levels,
    framed,
    level_line,
    short,
    shortened,
    tick_marks,
    tick_text,
)
from buildsys.report.ranking import COLUMNS, ranking_cells, ranking_notes
from buildsys.report.results.ranking import RankedEngine, Ranking
from buildsys.system.printable import printable_line

_HEIGHT = 280
_FLOOR = 24  # pixels at the bottom for errors of 0
_SMALLEST, _LARGEST = 4.0, 16.0  # radius in pixels; the area is proportional to the file size
_LABEL = 14  # pixels between two labels
_LONGEST_LABEL = 22


def pareto(ranking: Ranking) -> Chart | None:
    """Draw the ranked engines, and the border that no engine passes.

    None with fewer than two known points: there is nothing to weigh.
    """
    points = [one for one in ranking.ranked if _is_shown(one)]
    if len(points) < 2:
        return None
    latencies = [end for one in points for end in (one.p50_ms, *(one.p50_interval_ms or ())) if end]
    axis = Axis.around(latencies, is_log=True, margin=0.12)
    up = Axis.around([one.error for one in points if one.error], is_log=True, margin=0.2)
    largest = max(one.size_bytes or 0 for one in points)

    floor = 0 if all(one.error for one in points) else _FLOOR

    def across(latency: float) -> float:
        return beside_levels(axis.at(latency))

    def top(error: float | None) -> float:
        return (_HEIGHT - floor) * (1 - up.at(error) / 100) if error else _HEIGHT - floor / 2

    parts = [level_line(top(tick), tick_text(tick)) for tick in up.ticks()]
    ticks = [(across(tick), f"{tick_text(tick)} ms") for tick in axis.ticks()]
    parts += tick_marks(ticks, _HEIGHT)
    parts.append(_border(points, across, top))
    labels: list[tuple[float, float, float]] = []  # left and right in percent, y
    names: list[str] = []  # above all circles
    for one in sorted(points, key=lambda one: -(one.size_bytes or 0)):  # small ones on top
        x, y = across(one.p50_ms or 0.0), top(one.error)
        kind, style = ("k0", "optimal") if one.is_optimal else ("b0", "worse")
        if one.p50_interval_ms and len(one.p50_interval_ms) == 2:
            low, high = map(across, one.p50_interval_ms)
            parts.append(
                f'<line class="whisker {kind}" x1="{short(low)}%" x2="{short(high)}%"'
                f' y1="{short(y)}" y2="{short(y)}"/>'
            )
        share = (one.size_bytes or 0) / largest if largest else 0.0
        radius = max(_SMALLEST, _LARGEST * math.sqrt(share))
        title = f"{one.engine}: {q.significant(one.p50_ms)} ms, error {q.error(one.error)}"
        title += f", {q.size(one.size_bytes)}"
        parts.append(
            f'<circle class="{style}" cx="{short(x)}%" cy="{short(y)}" r="{short(radius)}">'
            f"<title>{escape(printable_line(title))}</title></circle>"
        )
        width = min(len(one.engine), _LONGEST_LABEL) * CHARACTER
        begin = min(max(x - width / 2, 0.0), 100.0 - width)
        line = y - radius - 5 if y - radius > 2 * _LABEL else y + radius + _LABEL
        while any(
            left < begin + width and begin < right and abs(line - other) < _LABEL
            for left, right, other in labels
        ):
            line += _LABEL
        labels.append((begin, begin + width, line))
        names.append(
            f'<text class="small over-lines" x="{short(begin + width / 2)}%" y="{short(line)}"'
            f' text-anchor="middle">{shortened(one.engine, _LONGEST_LABEL)}</text>'
        )
    label = f"Error against latency in case {ranking.case}: " + "; ".join(
        f"{one.engine} {q.significant(one.p50_ms)} ms, {q.error(one.error)}" for one in points
    )
    return Chart(
        framed([*parts, *names], _HEIGHT + 22, label),
        COLUMNS,
        tuple(ranking_cells(ranking, one) for one in ranking.ranked),
        (("k0", "Pareto-optimal"), ("b0", "another is at least as good in every figure")),
        tuple(ranking_notes(ranking)),
    )


def _border(
    points: Sequence[RankedEngine],
    across: Callable[[float], float],
    top: Callable[[float | None], float],
) -> str:
    """Return steps along the Pareto-optimal engines."""
    path, least = "", math.inf
    for one in sorted(points, key=lambda one: (one.p50_ms or 0.0, one.error or 0.0)):
        if (error := one.error or 0.0) < least:
            x, y = short(across(one.p50_ms or 0.0) * 10), short(top(error))
            path += f"H{x}V{y}" if path else f"M{x} 0V{y}"
            least = error
    return (
        f'<svg width="100%" height="{_HEIGHT}" viewBox="0 0 1000 {_HEIGHT}"'
        f' preserveAspectRatio="none"><path class="border" d="{path}H1000"/></svg>'
    )


def _is_shown(one: RankedEngine) -> bool:
    latency, error = one.p50_ms, one.error
    return bool(latency and latency > 0) and error is not None and math.isfinite(error)
