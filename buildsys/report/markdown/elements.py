"""Markdown elements for terminals and renderers: padded tables, escaped text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from buildsys.report.formatting import align, display_width
from buildsys.system.printable import printable

_SPECIAL = re.compile(r"([\\`*<|\[\]~]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;))")
_LONGEST = 400
_STATUS_TEXTS = {"failed": "FAILED", "noisy": "NOISY", "absent": "no result"}


def escape(text: str) -> str:
    """Escape text to one line without markup; very long text is cut."""
    line = _one_line(text)
    if len(line) > _LONGEST:
        line = line[:_LONGEST].rstrip() + " …"
    return _SPECIAL.sub(r"\\\1", line)


def sentence(text: str) -> str:
    """Escape text, with one full stop at its end."""
    return escape(text.rstrip().rstrip(".")) + "."


def code(text: str) -> str:
    """Write text as a code span; empty text stays empty."""
    line = _one_line(text)
    if not line:
        return ""
    mark = fence(line)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{mark}{pad}{line}{pad}{mark}"


def fence(text: str, least: int = 1) -> str:
    """Choose more backticks than ``text`` has in one place."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write the lines of a table.

    A title ending in ``>`` aligns right.
    """
    right = [column.endswith(">") for column in columns]
    # a bar ends a cell even inside a code span; one that is escaped already stays as it is
    cells = [[re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in row] for row in rows]
    titles, *cells = align([[column.removesuffix(">") for column in columns], *cells], right, 3)
    rule = [
        "-" * (display_width(title) - 1) + (":" if at_right else "-")
        for title, at_right in zip(titles, right, strict=True)
    ]
    return [f"| {' | '.join(row)} |" for row in (titles, rule, *cells)]


def status_text(status: str) -> str:
    """Write a status for people; only passed targets are called so."""
    return _STATUS_TEXTS.get(status, status)


def section(title: str) -> tuple[str, str, str]:
    """Write the lines of a heading such as ``## Title``."""
    return ("", title, "")


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
