"""Charts as inline SVG, each with its numbers as a table.

Positions are percentages of the width and sizes pixels: a chart fills a phone or a wide screen, and
its text keeps its size. Curves are in nested pictures that stretch (lines keep their width).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from markupsafe import Markup, escape

from buildsys.report import formatting as q
from buildsys.report.html.axes import Axis, quantile
from buildsys.report.html.density import bin_edges, density, positive
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
from buildsys.system.printable import printable_line

_TEXT = 15  # pixels of a line of text
_AXIS = 22  # pixels below a chart
_MOST_LANES = 3  # of cases below the errors of an output; the table has them all
_PHONE = 42  # characters of a line
_LONGEST_LABEL = 30
_LEFT_END = 30  # percent, with no room to the left for the label of a limit

Interval = tuple[float, ...] | None


@dataclass(frozen=True)
class Chart:
    """A picture with its numbers.

    A column that ends in ``>`` is aligned right.
    """

    svg: Markup
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    legend: tuple[tuple[str, str], ...] = ()  # class and name of each series
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Distribution:
    """The latencies of one contender."""

    name: str
    kind: str  # the class that colors it
    samples_ms: Sequence[float]
    p50_ms: float | None
    p99_ms: float | None
    interval_ms: Interval = None
    noisy: bool = False


@dataclass(frozen=True)
class ErrorRow:
    """The errors of one output, by case."""

    name: str
    errors: Mapping[str, float]


@dataclass(frozen=True)
class Series:
    """A line through points (x, y, interval of y)."""

    name: str
    kind: str
    points: tuple[tuple[float, float, Interval], ...]


@dataclass(frozen=True)
class TrendPoint:
    """One build in a trend; ``value`` is None for a failed one."""

    value: float | None
    interval: Interval
    label: str  # date, revision
    mark: str = ""  # a change of the environment before this build
    noisy: bool = False


def distributions(rows: Sequence[Distribution]) -> Chart | None:
    """Draw the density of each contender's latencies on a logarithmic axis.

    The axis ends shortly after the largest 99th percentile; the table has the maximum.
    """
    samples = [positive(row.samples_ms) for row in rows]
    shown = [(row, found) for row, found in zip(rows, samples, strict=True) if found]
    if not shown:
        return None
    ends = [end for _, s in shown for end in (s[0], quantile(s, 0.995))]
    ends += [p for row, _ in shown for p in (row.p50_ms, row.p99_ms) if p]
    axis, parts, y = Axis.around(ends, is_log=True, margin=0.03), [], 0
    edges = bin_edges(axis)
    table = []
    for row, found in shown:
        median = _median(row.p50_ms, row.interval_ms, noisy=row.noisy)
        if len(row.name) + len(median) > _PHONE:  # they would overlap there
            parts.append(_row_title(row.name, "", y))
            y += _TEXT + 2
            parts.append(_row_title("", median, y))
        else:
            parts.append(_row_title(row.name, median, y))
        parts.append(density(axis, edges, found, row.kind, y + 20))
        for value, style in ((row.p50_ms, "median"), (row.p99_ms, "tail")):
            if value is not None and math.isfinite(value):
                at = short(axis.at(value))
                parts.append(
                    f'<line class="{style}" x1="{at}%" x2="{at}%" y1="{y + 22}" y2="{y + 56}"/>'
                )
        if row.interval_ms and len(row.interval_ms) == 2:
            low, high = (axis.at(end) for end in row.interval_ms)
            parts.append(
                f'<rect class="interval" x="{short(low)}%" y="{y + 22}"'
                f' width="{short(max(high - low, 0.0))}%" height="34"/>'
            )
        y += 68
        table.append(
            (
                row.name,
                q.count(len(found)),
                q.latency(found[0], noisy=row.noisy),
                q.interval(row.interval_ms, noisy=row.noisy),
                *(
                    q.latency(latency_ms, noisy=row.noisy)
                    for latency_ms in (*(quantile(found, n) for n in (0.5, 0.9, 0.99)), found[-1])
                ),
            )
        )
    label = "Distribution of latencies in milliseconds: " + "; ".join(
        f"{row.name} median {_median(row.p50_ms, None, noisy=row.noisy)}" for row, _ in shown
    )
    columns = (
        "contender", "samples>", "min (ms)>", "95 % interval of p50>", "p50 (ms)>",
        "p90 (ms)>", "p99 (ms)>", "max (ms)>",
    )  # fmt: skip
    svg = framed([*_grid(axis, y, "ms"), *parts], y + _AXIS, label)
    return Chart(svg, columns, tuple(table))


def errors(rows: Sequence[ErrorRow], limit: float | None, measure: str) -> Chart | None:
    """Draw the errors of outputs and cases and their limit, logarithmically.

    An error of 0 is at the left end, one that is not finite at the right. None without errors.
    """
    values = [value for row in rows for value in row.errors.values()]
    if not any(values):  # none, or all of them 0
        return None
    positive = [v for v in values if math.isfinite(v) and v > 0]
    ends = [*positive, *([limit] if limit else [])]
    if ends:
        ends += [min(ends) / 2, max(ends) * (4 if limit and limit == max(ends) else 2)]
    axis = Axis.around(ends, is_log=True, margin=0.04)
    parts, y, table = [], 20.0, []
    for row in rows:
        worst = max(row.errors.values(), key=lambda v: (math.isnan(v), v))
        parts.append(_row_title(row.name, q.error(worst), y))
        line = y + 28
        parts.append(f'<line class="track" x2="100%" y1="{short(line)}" y2="{short(line)}"/>')
        ordered = sorted(row.errors.items(), key=lambda item: axis.at(item[1]), reverse=True)
        lanes: list[float] = []  # left end of the last label of each
        for case, value in ordered:
            at = axis.at(value) if value != 0 else 0.0
            is_over = not math.isfinite(value) or (limit is not None and value > limit)
            inside = min(max(at, 1.2), 98.8)
            style = "over" if is_over else "zero" if value == 0 else "within"
            title = escape(printable_line(f"{case}: {q.error(value)}"))
            parts.append(
                f'<circle class="{style}" cx="{short(inside)}%" cy="{short(line)}" r="4.5">'
                f"<title>{title}</title></circle>"
            )
            width = min(len(case), 12) * CHARACTER
            begin = min(max(inside - width / 2, 0.0), 100.0 - width)
            free = (n for n, left in enumerate(lanes) if begin + width + 1.5 < left)
            lane = next(free, len(lanes))
            if lane == _MOST_LANES:
                continue
            lanes[lane : lane + 1] = [begin]
            center = short(begin + width / 2)
            parts.append(
                f'<text class="small" x="{center}%" y="{short(line + 16 + lane * 12)}"'
                f' text-anchor="middle">{shortened(case, 12)}</text>'
            )
        table += [
            (row.name, case, q.error(value), _share_of(value, limit))
            for case, value in reversed(ordered)
        ]
        y = line + 16 + len(lanes) * 12 + 8
    lines = list(_grid(axis, y, ""))
    if limit:
        edge = axis.at(limit)
        dx, anchor = (5, "start") if edge < _LEFT_END else (-5, "end")
        lines.append(
            f'<rect class="beyond" x="{short(edge)}%" width="{short(100 - edge)}%"'
            f' height="{short(y)}"/>'
            f'<line class="limit" x1="{short(edge)}%" x2="{short(edge)}%" y2="{short(y)}"/>'
            f'<text class="limit" x="{short(edge)}%" dx="{dx}" y="11" text-anchor="{anchor}">'
            f"limit {q.error(limit)}</text>"
        )
    label = f"{measure} per output and case" + (f", limit {q.error(limit)}" if limit else "")
    columns = ("output", "case", f"{measure}>", "of the limit>")
    return Chart(framed([*lines, *parts], y + _AXIS, label), columns, tuple(table))


def lines(
    series: Sequence[Series], x_title: str, y_title: str, *, height: int = 220
) -> Chart | None:
    """Draw lines over logarithmic axes, with the interval of each point.

    None with fewer than two different x: there is nothing to connect.
    """
    xs = sorted({x for one in series for x, _, _ in one.points if x > 0})
    ys = [y for one in series for _, y, _ in one.points]
    if len(xs) < 2 or not any(y > 0 for y in ys):
        return None
    axis = Axis.around(xs, is_log=True, margin=0.04)
    up = Axis.around([y for y in ys if y > 0], is_log=True, margin=0.1)

    def across(x: float) -> float:
        return beside_levels(axis.at(x))

    def top(value: float) -> float:
        return height * (1 - up.at(value) / 100)

    parts = [level_line(top(tick), tick_text(tick)) for tick in up.ticks()]
    ticks = [(across(x), tick_text(x)) for x in (xs if len(xs) <= 8 else axis.ticks())]
    parts += tick_marks(ticks, height, with_lines=False)
    table = []
    for one in series:
        points = sorted(point for point in one.points if point[0] > 0 and point[1] > 0)
        path = " ".join(
            f"{'L' if n else 'M'}{short(across(x) * 10)} {short(top(y))}"
            for n, (x, y, _) in enumerate(points)
        )
        parts.append(
            f'<svg width="100%" height="{height}" viewBox="0 0 1000 {height}"'
            f' preserveAspectRatio="none"><path class="line {one.kind}" d="{path}"/></svg>'
        )
        for x, y, interval in points:
            at = short(across(x))
            if interval and len(interval) == 2:
                parts.append(
                    f'<line class="whisker {one.kind}" x1="{at}%" x2="{at}%"'
                    f' y1="{short(top(interval[0]))}" y2="{short(top(interval[1]))}"/>'
                )
            name = escape(printable_line(f"{one.name}, {x_title} {tick_text(x)}: {tick_text(y)}"))
            parts.append(
                f'<circle class="dot {one.kind}" cx="{at}%" cy="{short(top(y))}" r="3.5">'
                f"<title>{name}</title></circle>"
            )
            table.append((one.name, tick_text(x), q.significant(y), q.interval(interval)))
    legend = tuple((one.kind, one.name) for one in series)
    columns = ("contender", f"{x_title}>", f"{y_title}>", "95 % interval>")
    label = f"{y_title} against {x_title}"
    return Chart(framed(parts, height + _AXIS, label), columns, tuple(table), legend)


def trend(
    points: Sequence[TrendPoint], unit: str, *, most_rows: int, height: int = 130
) -> Chart | None:
    """Draw a value by build, oldest first, with intervals and failures.

    The table has the last ``most_rows``.
    """
    known = [(n, p, p.value) for n, p in enumerate(points) if p.value is not None and p.value > 0]
    if len(known) < 2:
        return None
    ends = [end for _, p, value in known for end in (value, *(p.interval or ())) if end > 0]
    up, (marks, places, corners) = Axis.around(ends, margin=0.15), _trend_places(len(points))

    def top(value: float) -> str:
        return short(height * (1 - up.at(value) / 100))

    parts = [
        level_line(height * (1 - up.at(tick) / 100), f"{tick_text(tick)} {unit}")
        for tick in up.ticks()[:5]
    ]
    for n, point in enumerate(points):
        if point.mark:
            parts.append(
                f'<line class="mark" x1="{marks[n]}%" x2="{marks[n]}%" y2="{height}">'
                f"<title>{shortened(point.mark, 400)}</title></line>"
            )
    tops = {n: top(value) for n, _, value in known}
    band = [(n, p.interval) for n, p, _ in known if p.interval and len(p.interval) == 2]
    outline = [f"{corners[n]} {top(interval[1])}" for n, interval in band]
    outline += [f"{corners[n]} {top(interval[0])}" for n, interval in reversed(band)]
    line = [f"{corners[n]} {at}" for n, at in tops.items()]
    curves = "".join(
        f'<path class="{style} k0" d="M{"L".join(path)}{end}"/>'
        for style, path, end in (("band", outline, " Z"), ("line", line, ""))
        if path
    )
    parts.append(
        f'<svg width="100%" height="{height}" viewBox="0 0 1000 {height}"'
        f' preserveAspectRatio="none">{curves}</svg>'
    )
    for n, point in enumerate(points):
        value = q.latency(point.value, noisy=point.noisy)
        value = "failed" if point.value is None else f"{value} {unit}"
        title = f"<title>{shortened(f'{point.label}: {value}', 200)}</title>"
        if point.value is None:
            parts.append(
                f'<rect class="failed" x="{places[n]}%" y="{height - 9}" width="3" height="9">'
                f"{title}</rect>"
            )
        else:
            style = "dot k0 last" if n == known[-1][0] else "dot k0"
            parts.append(
                f'<circle class="{style}" cx="{places[n]}%" cy="{tops.get(n) or top(point.value)}"'
                f' r="2.5">{title}</circle>'
            )
    rows = tuple(
        (
            p.label,
            q.latency(p.value, noisy=p.noisy),
            q.interval(p.interval, noisy=p.noisy),
            p.mark,
        )
        for p in points[: -most_rows - 1 : -1]
    )
    columns = ("build", f"p50 ({unit})>", "95 % interval>", "changed before it")
    label = f"Median latency of the last {len(points)} builds"
    return Chart(framed(parts, height + 4, label), columns, rows)


@cache
def _trend_places(count: int) -> tuple[list[str], list[str], list[str]]:
    """Return where marks, points and corners of a trend are: %, % and thousandths."""
    last = max(count - 1, 1)
    at = [beside_levels(98 * n / last) for n in range(count)]
    half = (at[-1] - at[0]) / last / 2
    corners = [f"{place * 10:.0f}" for place in at]
    return [short(place - half) for place in at], [*map(short, at)], corners


def _grid(axis: Axis, height: float, unit: str) -> Iterator[str]:
    ticks = [(axis.at(tick), f"{tick_text(tick)} {unit}".rstrip()) for tick in axis.ticks()]
    yield from tick_marks(ticks, height)


def _row_title(name: str, value: str, y: float) -> str:
    at_y = short(y + _TEXT)
    left = f'<text class="name" y="{at_y}">{shortened(name, _LONGEST_LABEL)}</text>'
    right = f'<text class="value" x="100%" y="{at_y}">{escape(value)}</text>'
    return (left if name else "") + (right if value else "")


def _median(p50_ms: float | None, interval: Interval, *, noisy: bool) -> str:
    if p50_ms is None or not math.isfinite(p50_ms):
        return q.NOTHING
    ends = q.interval(interval, noisy=noisy)
    spread = f"  [{ends}]" if interval and len(interval) == 2 else ""
    return f"{q.latency(p50_ms, noisy=noisy)} ms{spread}{' noisy' if noisy else ''}"


def _share_of(value: float, limit: float | None) -> str:
    if not limit or not math.isfinite(value):
        return q.NOTHING
    return f"{100 * value / limit:.2g} %"
