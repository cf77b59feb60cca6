"""Elements of pictures as SVG: ticks, levels, texts, sparklines and bars."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from markupsafe import Markup, escape

from buildsys.system.printable import printable, printable_line

CHARACTER = 2.1  # percent of a phone's width, of small text
_LEVELS = 16  # percent, for the labels of levels
_PLAIN = re.compile(r"[ !#-%(-;=?-_a-~]*")  # without quotes, &, < and >: nothing to replace


def sparkline(values: Sequence[float | None], style: str = "spark") -> Markup:
    """Draw a small line without axes; a failed build interrupts it.

    Empty for one value.
    """
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
        f'<svg class="bar" aria-hidden="true"><rect class="{kind}" width="{short(width * 100)}%"/>'
        "</svg>"
    )


def tick_marks(
    places: Iterable[tuple[float, str]], height: float, *, with_lines: bool = True
) -> Iterator[str]:
    """Yield ticks (percent of the width, label), without labels that touch on a phone."""
    end = -math.inf
    for at, label in places:
        x, width = short(at), len(label) * CHARACTER
        share, anchor = (0.0, "start") if at < 5 else (1.0, "end") if at > 95 else (0.5, "middle")
        begin = at - share * width
        if with_lines:
            yield f'<line class="grid" x1="{x}%" x2="{x}%" y2="{short(height)}"/>'
        if begin > end:
            end = begin + width + CHARACTER
            yield (
                f'<text class="tick" x="{x}%" y="{short(height + 15)}" text-anchor="{anchor}">'
                f"{label}</text>"
            )


def beside_levels(at: float) -> float:
    """Return a position of an axis to the right of the labels of levels."""
    return _LEVELS + (100 - _LEVELS) * at / 100


def level_line(y: float, label: str) -> str:
    """Return a horizontal grid line with its label."""
    return (
        f'<line class="grid" x2="100%" y1="{short(y)}" y2="{short(y)}"/>'
        f'<text class="tick" y="{short(y - 4)}">{label}</text>'
    )


def framed(parts: Iterable[str], height: float, label: str) -> Markup:
    """Return a chart from its parts. Their text is escaped."""
    return Markup(  # noqa: S704 - by ``shortened`` and ``escape``
        f'<svg class="chart" role="img" aria-label="{escape(printable_line(label))}" width="100%"'
        f' height="{short(height)}">{"".join(parts)}</svg>'
    )


def escaped(text: str) -> str:
    """Return printable text as HTML."""
    # nearly always, and four times as fast
    return text if _PLAIN.fullmatch(text) else escape(printable(text))


def shortened(text: str, longest: int) -> str:
    """Return escaped text of at most ``longest`` characters, with a tooltip."""
    if len(text) <= longest:
        return escaped(text.replace("\n", " "))
    line = printable_line(text)
    shown = f"{line[: longest - 1]}…" if len(line) > longest else line
    title = f"<title>{escape(line)}</title>" if shown != line and longest <= 30 else ""
    return f"{escape(shown)}{title}"


def tick_text(value: float) -> str:
    """Return a tick's value: 0.5, 20, 1e-5."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.10g}" if abs(value) < 1000 else f"{value:,.0f}"


def short(value: float) -> str:
    """Return a coordinate with as few characters as possible."""
    return f"{value:.1f}".removesuffix(".0")
