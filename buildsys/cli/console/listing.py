"""Answers on a terminal and in pipes: a word in colour, a name, and lines below it that never run into the words."""

from __future__ import annotations

import os
import time
from calendar import timegm
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

_STYLES = {
    "fresh": "green", "stale": "bold red", "may rerun": "yellow", "restore": "cyan", "run": "bold", "added": "green",
    "removed": "red", "changed": "yellow", "behind": "dim", "ok": "green", "missing": "yellow", "broken": "bold red",
}  # fmt: skip
_UNITS = ((86400, "day"), (3600, "h"), (60, "min"))


@dataclass(frozen=True)
class Entry:
    """One target: a word on its state, its name, what is said of it beside that, and details below."""

    word: str
    text: str
    details: Sequence[str] = ()
    remark: str = ""


def write_page(out: TextIO, entries: Iterable[Entry], closing: Sequence[str]) -> None:
    """Print entries and closing lines, with colours and folded to its width on a terminal, plain elsewhere."""
    if hasattr(out, "reconfigure"):
        out.reconfigure(errors="replace")
    listed = list(entries)
    width = max((len(entry.word) for entry in listed), default=0) + 2
    if out.isatty() and os.environ.get("TERM") != "dumb":
        _write_with_rich(out, listed, closing, width)
        return
    for entry in listed:
        remark = f"  {entry.remark}" if entry.remark else ""
        out.write(f"{entry.word:<{width}}{entry.text}{remark}\n")
        out.writelines(f"{' ' * (width + 2)}{line}\n" for line in entry.details)
    out.writelines(f"{line}\n" for line in closing)


def _write_with_rich(
    out: TextIO, entries: Iterable[Entry], closing: Iterable[str], width: int
) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out, highlight=False)
    for entry in entries:
        row = Table.grid(padding=0)
        row.add_column(width=width, no_wrap=True)
        row.add_column(overflow="fold", no_wrap=bool(entry.remark))
        row.add_column(overflow="fold")
        gap = (0, 0, 0, 2 if entry.remark else 0)
        row.add_row(
            Text(entry.word, _STYLES.get(entry.word, "")),
            Text(entry.text),
            Padding(Text(entry.remark), gap),
        )
        console.print(row)
        for line in entry.details:
            console.print(Padding(Text(line, overflow="fold"), (0, 0, 0, width + 2)))
    for line in closing:
        console.print(Text(line), soft_wrap=True)


def moment(started: str) -> str:
    """Return when something began, as a person would ask: ``3 min ago (2026-11-20 20:15 UTC)``."""
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
