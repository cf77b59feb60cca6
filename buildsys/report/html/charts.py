"""Charts as inline SVG.

Positions are percentages of the width and sizes are pixels: a chart fills a phone or a wide screen,
and its text keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from buildsys.system.printable import printable_line

_LEVELS = 16  # percent of the width, for the labels of levels
_HEIGHT = 130  # pixels
_MARGIN = 0.15  # of the range of values
_LONGEST_TITLE = 400
_MOST_TICKS = 6
Place = tuple[float, float]  # percent of the width, pixels from the top


@dataclass(frozen=True)
class ChartMark:
    """One value of a trend, None for a failure."""

    value: float | None
    title: str  # the tooltip
    interval: Sequence[float] = ()
    is_faint: bool = False
    change: str = ""  # what changed before it: a vertical line


def trend_line(marks: Sequence[ChartMark], label: str, unit: str) -> Markup:
    """Draw finite values in order over levels; failures are at the bottom."""
    ends = [end for mark in marks for end in (mark.value, *mark.interval) if end is not None]
    span = (max(ends) - min(ends)) or abs(max(ends)) * 0.1 or 1.0
    low, high = min(ends) - span * _MARGIN, max(ends) + span * _MARGIN

    def across(number: float) -> float:
        return _LEVELS + (98 - _LEVELS) * (number + 1) / (len(marks) + 1)

    def down(value: float | None) -> float:
        if value is None:
            return _HEIGHT - 5
        return _HEIGHT * (1 - min(max((value - low) / (high - low), 0.0), 1.0))

    parts = []
    step = round_step((high - low) / _MOST_TICKS)
    for number in range(math.ceil(low / step), math.floor(high / step) + 1):
        y, text = down(number * step), f"{tick_text(number * step)} {unit}"
        parts.append(_line("grid", (0, y), (100, y)))
        parts.append(f'<text class="tick" y="{_short(y - 4)}">{text}</text>')
    places = [(across(number), down(mark.value)) for number, mark in enumerate(marks)]
    points = [place for place, mark in zip(places, marks, strict=True) if mark.value is not None]
    parts += [_line("line k0", *ends) for ends in pairwise(points)]
    for number, ((x, y), mark) in enumerate(zip(places, marks, strict=True)):
        if mark.change:
            before = across(number - 0.5)
            parts.append(_line("mark", (before, 0), (before, _HEIGHT), mark.change))
        if mark.interval:
            low_y, high_y = map(down, mark.interval)
            parts.append(_line("whisker k0", (x, low_y), (x, high_y)))
        style = " over" if mark.value is None else " faint" if mark.is_faint else ""
        place = f'cx="{_short(x)}%" cy="{_short(y)}" r="{4 if mark.value is None else 2.5}"'
        parts.append(f'<circle class="dot k0{style}" {place}>{_title(mark.title)}</circle>')
    return Markup(  # noqa: S704 - all texts are escaped
        f'<svg class="chart" role="img" aria-label="{escape(printable_line(label))}"'
        f' width="100%" height="{_HEIGHT}">{"".join(parts)}</svg>'
    )


def sparkline(values: Sequence[float | None], style: str = "spark") -> Markup:
    """Draw a small line without axes, "" for one value; a failed build interrupts it."""
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    if len(numbers) < 2:
        return Markup("")
    middle = (min(numbers) + max(numbers)) / 2
    half = max(max(numbers) - middle, abs(middle) * 0.05) or 1.0  # 5 %: noise stays a flat line
    path, pen = "", "M"
    for n, value in enumerate(values):
        if value is None or not math.isfinite(value):
            pen = "M"
            continue
        x, y = round(96 * n / (len(values) - 1)), round(12 - 10 * (value - middle) / half)
        path += f"{pen}{x} {y}"
        pen = "L"
    return Markup(  # noqa: S704
        f'<svg class="{style}" viewBox="-2 0 100 24" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="{path}"/></svg>'
    )


def bar(share: float | None, kind: str = "k0") -> Markup:
    """Draw a horizontal bar for a table cell."""
    width = 0.0 if share is None or not math.isfinite(share) else min(max(share, 0.0), 1.0)
    return Markup(  # noqa: S704
        f'<svg class="bar" aria-hidden="true"><rect class="{kind}" width="{_short(width * 100)}%"/>'
        "</svg>"
    )


def tick_text(value: float) -> str:
    """Write a tick's value: 0.5, 20, 1e-5."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.10g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def round_step(span: float) -> float:
    """Choose the smallest 1, 2 or 5 times a power of ten that is not below ``span``."""
    size = 10.0 ** math.floor(math.log10(span))
    return next((step * size for step in (1.0, 2.0, 5.0) if step * size >= span), 10 * size)


def _line(style: str, begin: Place, end: Place, title: str = "") -> str:
    ends = f'x1="{_short(begin[0])}%" x2="{_short(end[0])}%"'
    ends += f' y1="{_short(begin[1])}" y2="{_short(end[1])}"'
    return f'<line class="{style}" {ends}>{_title(title)}</line>'


def _title(text: str) -> str:
    line = printable_line(text)
    line = f"{line[:_LONGEST_TITLE]}…" if len(line) > _LONGEST_TITLE else line
    return f"<title>{escape(line)}</title>" if text else ""


def _short(value: float) -> str:
    """Write a coordinate with as few characters as possible."""
    return f"{value:.1f}".removesuffix(".0")
