"""Charts as inline SVG, each with its numbers as a table.

Positions are percentages of the width and sizes are pixels: a chart fills a phone or a wide screen,
and its text keeps its size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from markupsafe import Markup, escape

from buildsys.report.html.axes import Axis
from buildsys.system.printable import printable, printable_line

_LEVELS = 16  # percent of the width, for the labels of levels
_EDGE = 3  # percent, so that marks at the ends of a strip are complete
_STRIP = 18  # pixels
_CHARACTER = 2.1  # percent of a phone's width, of small text
_LABEL = 14  # pixels between two labels
_LONGEST_LABEL = 22
_PLAIN = re.compile(r"[ !#-%(-;=?-_a-~]*")  # without quotes, &, < and >: nothing to replace

Interval = Sequence[float] | None


@dataclass(frozen=True)
class Mark:
    """One value of a chart; without ``y`` it is at the bottom."""

    x: float
    y: float | None
    title: str  # the tooltip
    x_interval: Interval = None
    y_interval: Interval = None
    label: str = ""
    style: str = ""
    radius: float = 3.5


@dataclass(frozen=True)
class Series:
    """Marks of one color, connected if ``is_line``."""

    kind: str  # the class that colors it
    marks: Sequence[Mark]
    is_line: bool = True


@dataclass(frozen=True)
class Chart:
    """A picture with its numbers; a column that ends in ``>`` is aligned right."""

    svg: Markup
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    legend: tuple[tuple[str, str], ...] = ()  # class and name of each series
    notes: tuple[str, ...] = ()


@dataclass
class _Labels:
    """Labels of marks that do not touch on a phone."""

    parts: list[str] = field(default_factory=list)
    taken: list[tuple[float, float, float]] = field(default_factory=list)  # left, right, y

    def add(self, text: str, x: float, y: float, radius: float) -> None:
        width = min(len(text), _LONGEST_LABEL) * _CHARACTER
        left = min(max(x - width / 2, 0.0), 100.0 - width)
        line = y - radius - 5 if y - radius > 2 * _LABEL else y + radius + _LABEL
        while any(
            begin < left + width and left < end and abs(line - other) < _LABEL
            for begin, end, other in self.taken
        ):
            line += _LABEL
        self.taken.append((left, left + width, line))
        self.parts.append(
            f'<text class="over-lines" x="{_short(left + width / 2)}%" y="{_short(line)}"'
            f' text-anchor="middle">{shortened(text, _LONGEST_LABEL)}</text>'
        )


def draw(
    series: Iterable[Series],
    x: Axis,
    y: Axis | None,
    label: str,
    *,
    height: int = _STRIP,
    units: tuple[str, str] = ("", ""),
    x_ticks: Sequence[float] | None = None,
    lines: Iterable[tuple[float, str, str]] = (),
) -> Markup:
    """Draw marks over two axes, or as a strip without axes if there is no ``y``.

    ``units`` belong to the ticks of x and y; ``lines`` are vertical: place, class and tooltip.
    """
    begin, end = (_LEVELS, 100) if y else (_EDGE, 100 - _EDGE)

    def across(value: float) -> str:
        return f"{_short(begin + (end - begin) * x.at(value) / 100)}%"

    def down(value: float | None) -> float:
        if y is None:
            return height / 2
        return height - 5 if value is None else height * (1 - y.at(value) / 100)

    parts, labels = [], _Labels()
    if y is not None:
        parts += [_level(down(tick), f"{tick_text(tick)} {units[1]}") for tick in y.ticks()]
        ticks = x.ticks() if x_ticks is None else x_ticks
        places = [(begin + (end - begin) * x.at(tick) / 100, tick) for tick in ticks]
        parts += _tick_marks(places, units[0], height)
    for place, style, title in lines:
        at = across(place)
        parts.append(
            f'<line class="{style}" x1="{at}" x2="{at}" y2="{height}">{_title(title)}</line>'
        )
    for one in series:
        known = [mark for mark in one.marks if y is None or mark.y is not None]
        for before, mark in pairwise(known if one.is_line else ()):
            ends = before, mark
            parts.append(_line(f"line {one.kind}", *((across(m.x), down(m.y)) for m in ends)))
        for mark in one.marks:
            at, top = across(mark.x), down(mark.y)
            if mark.x_interval and len(mark.x_interval) == 2:
                low, high = map(across, mark.x_interval)
                parts.append(_line(f"whisker {one.kind}", (low, top), (high, top)))
            if mark.y_interval and len(mark.y_interval) == 2:
                tops = map(down, mark.y_interval)
                parts.append(_line(f"whisker thin {one.kind}", *((at, top) for top in tops)))
            style = f"dot {one.kind} {mark.style}".rstrip()
            parts.append(
                f'<circle class="{style}" cx="{at}" cy="{_short(top)}" r="{_short(mark.radius)}">'
                f"{_title(mark.title)}</circle>"
            )
            if mark.label:
                labels.add(mark.label, float(at.removesuffix("%")), top, mark.radius)
    total, kind = (height + 22, "chart") if y else (height, "chart strip")
    return Markup(  # noqa: S704 - all texts are escaped
        f'<svg class="{kind}" role="img" aria-label="{escape(printable_line(label))}"'
        f' width="100%" height="{total}">{"".join([*parts, *labels.parts])}</svg>'
    )


def sparkline(values: Sequence[float | None], style: str = "spark") -> Markup:
    """Draw a small line without axes, "" for one value; a failed build interrupts it."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < 2:
        return Markup("")
    low, high = min(known), max(known)
    middle = (low + high) / 2
    half = max((high - low) / 2, abs(middle) * 0.05) or 1.0  # 5 %: noise stays a flat line
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


def escaped(text: str) -> str:
    """Escape text for HTML, without control characters."""
    # nearly always, and four times as fast
    return text if _PLAIN.fullmatch(text) else escape(printable(text))


def shortened(text: str, longest: int) -> str:
    """Escape at most ``longest`` characters of a text."""
    line = printable_line(text)
    return escaped(f"{line[: longest - 1]}…" if len(line) > longest else line)


def tick_text(value: float) -> str:
    """Write a tick's value: 0.5, 20, 1e-5."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.10g}" if abs(value) < 1000 else f"{value:,.0f}"


def _tick_marks(places: Iterable[tuple[float, float]], unit: str, height: float) -> Iterator[str]:
    """Yield ticks (percent of the width, value), without labels that touch on a phone."""
    end = -math.inf
    for at, value in places:
        text = f"{tick_text(value)} {unit}".rstrip()
        x, width = _short(at), len(text) * _CHARACTER
        share, anchor = (1.0, "end") if at > 95 else (0.5, "middle")
        begin = at - share * width
        yield f'<line class="grid" x1="{x}%" x2="{x}%" y2="{_short(height)}"/>'
        if begin > end:
            end = begin + width + _CHARACTER
            place = f'x="{x}%" y="{_short(height + 15)}" text-anchor="{anchor}"'
            yield f'<text class="tick" {place}>{text}</text>'


def _level(y: float, label: str) -> str:
    return (
        f'<line class="grid" x2="100%" y1="{_short(y)}" y2="{_short(y)}"/>'
        f'<text class="tick" y="{_short(y - 4)}">{label.rstrip()}</text>'
    )


def _line(style: str, begin: tuple[str, float], end: tuple[str, float]) -> str:
    ends = f'x1="{begin[0]}" x2="{end[0]}" y1="{_short(begin[1])}" y2="{_short(end[1])}"'
    return f'<line class="{style}" {ends}/>'


def _title(text: str) -> str:
    return f"<title>{shortened(text, 400)}</title>" if text else ""


def _short(value: float) -> str:
    """Write a coordinate with as few characters as possible."""
    return f"{value:.1f}".removesuffix(".0")
