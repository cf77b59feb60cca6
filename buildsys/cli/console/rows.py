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
from buildsys.system.printable import printable_line, use_plain_symbols

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {
    "fresh": "green", "stale": "bold red", "may rerun": "yellow", "restore": "cyan", "run": "bold",
    "added": "green", "removed": "red", "changed": "yellow", "downstream": "dim",
    "ok": "green", "missing": "yellow", "broken": "bold red", "unknown": "yellow",
    "unavailable": "yellow",
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
    out = sys.stdout
    use_plain_symbols(out)
    shown = printable_line
    listed = [
        Row(row.word, shown(row.text), [*map(shown, row.details)], shown(row.note)) for row in rows
    ]
    closing = [*map(shown, closing)]
    width = max((len(row.word) for row in listed), default=0) + 2
    if out.isatty() and os.environ.get("TERM") != "dumb":
        _print_with_rich(listed, closing, width)
        return
    for row in listed:
        note = f"  {row.note}" if row.note else ""
        out.write(f"{row.word:<{width}}{row.text}{note}\n")
        out.writelines(f"{' ' * (width + 2)}{line}\n" for line in row.details)
    out.writelines(f"{line}\n" for line in closing)


def text_console(out: TextIO, width: int | None = None) -> Console:
    """Return a console that prints texts as they are.

    A target may read as markup: ``bench:b:ort`` has an emoji.
    """
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:  # rich would exit with 1, which is a failed check
            raise BrokenPipeError

    return _Console(file=out, highlight=False, markup=False, emoji=False, width=width)


def _print_with_rich(rows: Iterable[Row], closing: Iterable[str], width: int) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = text_console(sys.stdout)
    for row in rows:
        grid = Table.grid(padding=0)
        grid.add_column(width=width, no_wrap=True)
        grid.add_column(overflow="fold", no_wrap=bool(row.note))
        grid.add_column(overflow="fold")
        word, text = Text(row.word, _STYLES.get(row.word, "")), Text(row.text)
        grid.add_row(word, text, Padding(Text(row.note), (0, 0, 0, 2 if row.note else 0)))
        console.print(grid)
        for line in row.details:
            console.print(Padding(Text(line, overflow="fold"), (0, 0, 0, width + 2)))
    for line in closing:
        console.print(Text(line), soft_wrap=True)


def titled_lines(title: str, lines: Iterable[str], indent: int) -> list[str]:
    """Return lines with a title in front of the first."""
    return [f"  {'' if at else title:<{indent}}{line}" for at, line in enumerate(lines)]


def format_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; ``>`` ends titles of right-aligned columns."""
    names = [title.removesuffix(">") for title in titles]
    cells = align([names, *rows], [title.endswith(">") for title in titles])
    return ["  ".join(line).rstrip() for line in cells]


def time_ago(started: str) -> str:
    """Return a past time as ``3 min ago (2026-11-20 20:15 UTC)``."""
    try:
        began = timegm(time.strptime(started, "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return started
    shown = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(began))
    past = time.time() - began
    if past < 0:  # the clock was set back
        return shown
    for seconds, unit in _UNITS:
        if past >= seconds:
            count = int(past // seconds)
            return f"{count} {unit}{'s' * (unit == 'day' and count > 1)} ago ({shown})"
    return f"{int(past)} s ago ({shown})"
