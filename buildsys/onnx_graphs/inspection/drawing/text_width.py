"""How much room text takes, and where a long name is broken."""

from __future__ import annotations

import re

from buildsys.onnx_graphs.inspection.plain_graph import TIMES

TITLE, SMALL = 12.0, 10.0  # font sizes in pixels
LINE_HEIGHT = 15.0
# Widths in parts of the font size, those of DejaVu Sans, which is wider than most fonts that may take its place.
_NARROW, _CAPITAL, _WIDE, _USUAL = 0.4, 0.74, 0.98, 0.645
_BOLD = 1.1
_BREAKS = re.compile(r"(?<=[/.,:_\- ])")


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a line in pixels; rather too much than too little."""
    return sum(map(_letter_width, text)) * size * (_BOLD if bold else 1.0)


def wrapped(text: str, longest: int) -> list[str]:
    """Return text as lines of at most ``longest`` characters, broken behind a separator where there is one."""
    lines = [""]
    for piece in _BREAKS.split(text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > longest:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1].rstrip()) > longest:
            lines[-1:] = [lines[-1][:longest], lines[-1][longest:]]
    return [line.strip() for line in lines if line.strip()]


def _letter_width(letter: str) -> float:
    if letter in "iljI.,:;|!'()[]/ ft":
        return _NARROW
    if letter in f"mwMW@%→⇢…∥{TIMES}" or ord(letter) > 0x2E80:
        return _WIDE
    return _CAPITAL if letter.isupper() else _USUAL
