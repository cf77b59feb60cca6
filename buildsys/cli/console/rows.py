"""Text output of commands: coloured rows, titled lines and tables."""

from __future__ import annotations

import os
import sys
import time
from calendar import timegm
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from buildsys.report.formatting import align
from buildsys.system.printable import printable_line

if TYPE_CHECKING:
    from rich.console import Console

_COLOURS = {  # ANSI
    "fresh": "32", "stale": "1;31", "may rerun": "33", "restore": "36", "run": "1", "added": "32",
    "removed": "31", "changed": "33", "downstream": "2", "ok": "32", "missing": "33",
    "broken": "1;31", "unknown": "33", "unavailable": "33",
}  # fmt: skip
_UNITS = ((86400, "day"), (3600, "h"), (60, "min"))


@dataclass(frozen=True)
class Row:
    """One word for a state, a name, a note and details."""

    word: str
    text: str
    details: Sequence[str] = ()
    note: str = ""


def print_rows(rows: Iterable[Row], closing: Sequence[str]) -> None:
    """Print rows and closing lines, with colours on a terminal."""
    rows = list(rows)
    width = max((len(row.word) for row in rows), default=0) + 2
    lines: list[tuple[str, str]] = []  # word and text
    for row in rows:
        lines.append((row.word, f"{row.text}  {row.note}" if row.note else row.text))
        lines += [("", f"  {detail}") for detail in row.details]
    texts = [(word, f"{word:<{width}}{printable_line(text)}") for word, text in lines]
    texts += [("", printable_line(text)) for text in closing]
    is_coloured = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    for word, text in texts:
        if is_coloured and word in _COLOURS and "NO_COLOR" not in os.environ:
            text = f"\x1b[{_COLOURS[word]}m{word}\x1b[0m{text[len(word) :]}"
        sys.stdout.write(f"{text}\n")


def text_console(out: TextIO, width: int | None = None) -> Console:
    """Open a console that prints texts as they are.

    A target may read as markup: ``bench:b:ort`` has an emoji.
    """
    from rich.console import Console

    return Console(file=out, highlight=False, markup=False, emoji=False, width=width)


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
