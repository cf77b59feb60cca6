"""Text output of commands: coloured rows, titled lines, tables and plots."""

from __future__ import annotations

import math
import os
import sys
import time
from calendar import timegm
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from buildsys.report.formatting import align
from buildsys.system.printable import printable_line, tolerate_other_encodings

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {
    "fresh": "green", "stale": "bold red", "may rerun": "yellow", "restore": "cyan", "run": "bold",
    "added": "green", "removed": "red", "changed": "yellow", "downstream": "dim",
    "ok": "green", "missing": "yellow", "broken": "bold red", "unknown": "yellow",
    "unavailable": "yellow",
}  # fmt: skip
_UNITS = ((86400, "day"), (3600, "h"), (60, "min"))
_PLOT_WIDTH, _PLOT_STEPS = 60, 7  # columns, with labels less than 80; lines above the lowest
_POINT, _BAR, _AXIS = "●", "│", "┤"
_ASCII = str.maketrans({_POINT: "*", _BAR: "|", _AXIS: "|"})


@dataclass(frozen=True)
class Row:
    """One word for a state, a name, a note and details."""

    word: str
    text: str
    details: Sequence[str] = ()
    note: str = ""


def print_rows(rows: Iterable[Row], closing: Sequence[str]) -> None:
    """Print rows and closing lines, with colours on a terminal."""
    tolerate_other_encodings(sys.stdout)
    rows = list(rows)
    width = max((len(row.word) for row in rows), default=0) + 2
    lines: list[tuple[str, str]] = []  # word and text
    for row in rows:
        lines.append((row.word, f"{row.text}  {row.note}" if row.note else row.text))
        lines += [("", f"  {detail}") for detail in row.details]
    texts = [(word, f"{word:<{width}}{printable_line(text)}") for word, text in lines]
    texts += [("", printable_line(text)) for text in closing]
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        sys.stdout.writelines(f"{text}\n" for _, text in texts)
        return
    from rich.text import Text

    console = text_console(sys.stdout)
    for word, text in texts:
        line = Text(text)
        line.stylize(_STYLES.get(word, ""), 0, len(word))
        console.print(line, soft_wrap=True)


def text_console(out: TextIO, width: int | None = None) -> Console:
    """Open a console that prints texts as they are.

    A target may read as markup: ``bench:b:ort`` has an emoji.
    """
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:  # rich would exit with 1, which is a failed check
            raise BrokenPipeError

    return _Console(file=out, highlight=False, markup=False, emoji=False, width=width)


def titled_lines(title: str, lines: Iterable[str], indent: int) -> list[str]:
    """Format lines with a title in front of the first."""
    return [f"  {'' if at else title:<{indent}}{line}" for at, line in enumerate(lines)]


def format_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Format a table; ``>`` ends titles of right-aligned columns."""
    names = [title.removesuffix(">") for title in titles]
    cells = align([names, *rows], [title.endswith(">") for title in titles])
    return ["  ".join(line).rstrip() for line in cells]


def time_ago(started: str) -> str:
    """Format a past time as ``3 min ago (2026-11-20 20:15 UTC)``."""
    try:
        began = timegm(time.strptime(started, "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return started
    moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(began))
    past = max(0, int(time.time() - began))
    for seconds, unit in _UNITS:
        if past >= seconds:
            count = past // seconds
            return f"{count} {unit}{'s' * (unit == 'day' and count > 1)} ago ({moment})"
    return f"{past} s ago ({moment})"


def plot_lines(
    points: Sequence[tuple[float, tuple[float, float] | None]], *, ascii_only: bool = False
) -> list[str]:
    """Plot values and their intervals from left to right; each line is a round level.

    Of more points than columns, the last are drawn.
    """
    from buildsys.report.html.charts import round_step

    drawn = [(value, span or (value, value)) for value, span in points[-_PLOT_WIDTH:]]
    drawn = [(value, span) for value, span in drawn if all(map(math.isfinite, (value, *span)))]
    if not drawn:
        return []
    bottom, top = min(low for _, (low, _) in drawn), max(high for _, (_, high) in drawn)
    margin = max(0.0, (0.02 * abs(top) or 1.0) - (top - bottom)) / 2  # a flat line stays flat
    level = round_step(top - bottom + 2 * margin, _PLOT_STEPS)
    first, last = round((bottom - margin) / level), round((top + margin) / level)
    step = max(1, min(4, _PLOT_WIDTH // len(drawn)))
    grid = {number: [" "] * (step * len(drawn)) for number in range(last, first - 1, -1)}
    for at, (value, (low, high)) in enumerate(drawn):
        for number in range(round(low / level), round(high / level) + 1):
            grid[number][at * step] = _BAR
        grid[round(value / level)][at * step] = _POINT
    decimals = max(0, -math.floor(math.log10(level)))
    labels = align([[f"{number * level:,.{decimals}f}"] for number in grid], [True])
    lines = [
        f"{label[0]} {_AXIS} {''.join(cells)}".rstrip()
        for label, cells in zip(labels, grid.values(), strict=True)
    ]
    return [line.translate(_ASCII) for line in lines] if ascii_only else lines
