"""Markdown pieces that read as well in a terminal as rendered: padded tables, escaped text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from unicodedata import east_asian_width

_SPECIAL = re.compile(r"([\\`*<|\[\]]|(?<![^\W_])_|_(?![^\W_]))")
_LONGEST = 400


def escape(text: str) -> str:
    """Return ``text`` as one line in which nothing is taken for markup; very long text is cut."""
    line = " ".join(text.split())
    if len(line) > _LONGEST:
        line = line[:_LONGEST].rstrip() + " …"
    return _SPECIAL.sub(r"\\\1", line)


def sentence(text: str) -> str:
    """Return ``text`` escaped and with one full stop at its end."""
    return escape(text.rstrip().rstrip(".")) + "."


def code(text: str) -> str:
    """Return ``text`` as a code span; empty text stays empty."""
    line = " ".join(text.split())
    if not line:
        return ""
    fence = "``" if "`" in line else "`"
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; a column whose title ends in ``>`` is aligned to the right."""
    right = [column.endswith(">") for column in columns]
    # a bar ends a cell even inside a code span; one that is escaped already stays as it is
    cells = [[re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in row] for row in rows]
    titles = [column.removesuffix(">") for column in columns]
    widths = [max(3, *(_width(row[at]) for row in (titles, *cells))) for at in range(len(titles))]
    rule = [
        "-" * (width - 1) + (":" if at_right else "-")
        for width, at_right in zip(widths, right, strict=True)
    ]
    return [_row(row, widths, right) for row in (titles, rule, *cells)]


def _row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        _pad(cell, width, at_right)
        for cell, width, at_right in zip(cells, widths, right, strict=True)
    )
    return "| " + " | ".join(padded) + " |"


def _pad(cell: str, width: int, right: bool) -> str:
    fill = " " * (width - _width(cell))
    return fill + cell if right else cell + fill


def _width(text: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)
