"""Charts as inline SVG.

Positions are percentages of the width and sizes are pixels: a chart fills a phone or a wide screen,
and its text keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from buildsys.system.printable import printable_line

_LEVELS = 16  # percent of the width, for the labels of levels
_EDGE = 3  # percent, so that marks at the ends of a strip are complete
_STRIP = 18  # pixels
_CHARACTER = 2.1  # percent of a phone's width, of small text
_LABEL = 14  # pixels between two labels
_LONGEST_LABEL, _LONGEST_TITLE = 22, 400
_MOST_TICKS = 6
_STEPS = (1.0, 2.0, 5.0)

Interval = Sequence[float] | None


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


@dataclass(frozen=True)
class ChartMark:
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
    marks: Sequence[ChartMark]
    is_line: bool = True


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

    def across(value: float) -> float:
        return begin + (end - begin) * x.at(value) / 100

    def down(value: float | None) -> float:
        if y is None:
            return height / 2
        return height - 5 if value is None else height * (1 - y.at(value) / 100)

    parts, labels = [], []
    if y is not None:
        parts += [_level(down(tick), f"{tick_text(tick)} {units[1]}") for tick in y.ticks()]
        ticks = x.ticks() if x_ticks is None else x_ticks
        parts += _tick_marks([(across(tick), tick) for tick in ticks], units[0], height)
    for place, style, title in lines:
        parts.append(_line(style, (across(place), 0), (across(place), height), title))
    for line in series:
        marks = [mark for mark in line.marks if y is None or mark.y is not None]
        points = [(across(mark.x), down(mark.y)) for mark in marks]
        parts += [_line(f"line {line.kind}", *ends) for ends in pairwise(points) if line.is_line]
        for mark in line.marks:
            at, top = across(mark.x), down(mark.y)
            if mark.x_interval:
                low, high = map(across, mark.x_interval)
                parts.append(_line(f"whisker {line.kind}", (low, top), (high, top)))
            if mark.y_interval:
                low, high = map(down, mark.y_interval)
                parts.append(_line(f"whisker thin {line.kind}", (at, low), (at, high)))
            style = f"dot {line.kind} {mark.style}".rstrip()
            parts.append(
                f'<circle class="{style}" cx="{_short(at)}%" cy="{_short(top)}"'
                f' r="{_short(mark.radius)}">{_title(mark.title)}</circle>'
            )
            if mark.label:
                labels.append((mark.label, at, top - mark.radius - 5))
    total, kind = (height + 22, "chart") if y else (height, "chart strip")
    return Markup(  # noqa: S704 - all texts are escaped
        f'<svg class="{kind}" role="img" aria-label="{escape(printable_line(label))}"'
        f' width="100%" height="{total}">{"".join([*parts, *_place(labels)])}</svg>'
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


def round_step(span: float, most: int) -> float:
    """Choose the smallest 1, 2 or 5 times a power of ten of which fewer than ``most`` fit."""
    size = 10.0 ** _exponent(span / most)
    return next((step * size for step in _STEPS if span / (step * size) < most), 10 * size)


def tick_text(value: float) -> str:
    """Write a tick's value: 0.5, 20, 1e-5."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.10g}" if abs(value) < 1000 else f"{value:,.0f}"


def _place(labels: Iterable[tuple[str, float, float]]) -> Iterator[str]:
    """Yield labels (text, percent of the width, height) below those that they would touch."""
    taken: list[tuple[float, float, float]] = []  # left, right, height
    for text, at, y in labels:
        width = min(len(text), _LONGEST_LABEL) * _CHARACTER
        left = min(max(at - width / 2, 0.0), 100.0 - width)
        y = max(y, _LABEL)
        while any(a < left + width and left < b and abs(y - c) < _LABEL for a, b, c in taken):
            y += _LABEL
        taken.append((left, left + width, y))
        yield (
            f'<text class="over-lines" x="{_short(left + width / 2)}%" y="{_short(y)}"'
            f' text-anchor="middle">{_shortened(text, _LONGEST_LABEL)}</text>'
        )


def _tick_marks(places: Iterable[tuple[float, float]], unit: str, height: float) -> Iterator[str]:
    """Yield ticks (percent of the width, value), without labels that touch on a phone."""
    end = -math.inf
    for at, value in places:
        text = f"{tick_text(value)} {unit}".rstrip()
        yield _line("grid", (at, 0), (at, height))
        width, anchor = len(text) * _CHARACTER, "end" if at > 95 else "middle"
        begin = at - (width if anchor == "end" else width / 2)
        if begin > end:
            end = begin + width + _CHARACTER
            place = f'x="{_short(at)}%" y="{_short(height + 15)}" text-anchor="{anchor}"'
            yield f'<text class="tick" {place}>{text}</text>'


def _level(y: float, label: str) -> str:
    text = f'<text class="tick" y="{_short(y - 4)}">{label.rstrip()}</text>'
    return _line("grid", (0, y), (100, y)) + text


def _line(style: str, begin: tuple[float, float], end: tuple[float, float], title: str = "") -> str:
    """Draw a line between two places: percent of the width, pixels from the top."""
    ends = f'x1="{_short(begin[0])}%" x2="{_short(end[0])}%"'
    ends += f' y1="{_short(begin[1])}" y2="{_short(end[1])}"'
    return f'<line class="{style}" {ends}>{_title(title)}</line>'


def _title(text: str) -> str:
    return f"<title>{_shortened(text, _LONGEST_TITLE)}</title>" if text else ""


def _shortened(text: str, longest: int) -> str:
    """Escape at most ``longest`` characters of a text."""
    line = printable_line(text)
    return escape(f"{line[: longest - 1]}…" if len(line) > longest else line)


def _short(value: float) -> str:
    """Write a coordinate with as few characters as possible."""
    return f"{value:.1f}".removesuffix(".0")


def _exponent(value: float) -> int:
    return math.floor(math.log10(value))
