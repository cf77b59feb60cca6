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
_CHARACTER = 2.1  # percent of a phone's width, of small text
_LABEL = 14  # pixels between two labels
_LONGEST_LABEL, _LONGEST_TITLE = 22, 400
_MOST_TICKS = 6
_STEPS = (1.0, 2.0, 5.0)

Interval = Sequence[float] | None
Place = tuple[float, float]  # percent of the width, pixels from the top


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic axis: ``low`` at 0, ``high`` at 100."""

    low: float
    high: float
    is_log: bool = False

    @classmethod
    def around(cls, values: Iterable[float], *, is_log: bool = False, margin: float = 0.06) -> Axis:
        """Choose an axis around all values that it can show, with a margin on both sides."""
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
        """List about six round values on the axis."""
        values: list[float] = []
        if self.is_log:
            decades = range(_exponent(self.low), _exponent(self.high) + 1)
            values = [step * 10.0**decade for decade in decades for step in _STEPS]
            values = [value for value in values if self.low <= value <= self.high]
        if len(values) < 2:
            step = _round_step((self.high - self.low) / _MOST_TICKS)
            numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
            return [number * step for number in numbers]
        return values[:: math.ceil(len(values) / _MOST_TICKS)]


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
    y: Axis,
    label: str,
    *,
    height: int,
    units: tuple[str, str] = ("", ""),
    x_ticks: Sequence[float] | None = None,
    lines: Iterable[tuple[float, str]] = (),
) -> Markup:
    """Draw marks over two axes; ``lines`` are vertical: place and tooltip."""

    def across(value: float) -> float:
        return _LEVELS + (100 - _LEVELS) * x.at(value) / 100

    def down(value: float | None) -> float:
        return height - 5 if value is None else height * (1 - y.at(value) / 100)

    parts, labels = [], []
    for tick in y.ticks():
        parts.append(_line("grid", (0, down(tick)), (100, down(tick))))
        text = f"{tick_text(tick)} {units[1]}".rstrip()
        parts.append(f'<text class="tick" y="{_short(down(tick) - 4)}">{text}</text>')
    for tick in x.ticks() if x_ticks is None else x_ticks:
        at = across(tick)
        anchor = "end" if at > 95 else "middle"
        place = f'x="{_short(at)}%" y="{height + 15}" text-anchor="{anchor}"'
        parts.append(_line("grid", (at, 0), (at, height)))
        text = f"{tick_text(tick)} {units[0]}".rstrip()
        parts.append(f'<text class="tick" {place}>{text}</text>')
    for value, title in lines:
        parts.append(_line("mark", (across(value), 0), (across(value), height), title))
    for line in series:
        points = [(across(mark.x), down(mark.y)) for mark in line.marks if mark.y is not None]
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
            place = f'cx="{_short(at)}%" cy="{_short(top)}" r="{_short(mark.radius)}"'
            parts.append(f'<circle class="{style}" {place}>{_title(mark.title)}</circle>')
            if mark.label:
                labels.append((mark.label, at, top - mark.radius - 5))
    return Markup(  # noqa: S704 - all texts are escaped
        f'<svg class="chart" role="img" aria-label="{escape(printable_line(label))}"'
        f' width="100%" height="{height + 22}">{"".join([*parts, *_place(labels)])}</svg>'
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


def _line(style: str, begin: Place, end: Place, title: str = "") -> str:
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


def _round_step(span: float) -> float:
    """Choose the smallest 1, 2 or 5 times a power of ten above ``span``."""
    size = 10.0 ** _exponent(span)
    return next((step * size for step in _STEPS if step * size > span), 10 * size)


def _exponent(value: float) -> int:
    return math.floor(math.log10(value))
