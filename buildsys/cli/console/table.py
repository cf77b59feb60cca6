"""Plain text tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from unicodedata import east_asian_width


def format_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; ``>`` ends titles of right-aligned columns."""
    lines = [[title.removesuffix(">") for title in titles], *rows]
    widths = [max(_width(line[at]) for line in lines) for at in range(len(titles))]
    return [
        "  ".join(
            " " * (width - _width(cell)) + cell
            if title.endswith(">")
            else cell + " " * (width - _width(cell))
            for cell, width, title in zip(line, widths, titles, strict=True)
        ).rstrip()
        for line in lines
    ]


def _width(text: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)
