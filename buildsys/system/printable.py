"""Text from outside, made safe to print.

Names in models, messages of libraries and manifests may contain anything. JSON output keeps them
as they are, because ``json.dumps`` escapes them; everything that a terminal or a page shows goes
through ``printable``.
"""

from __future__ import annotations

import codecs
import re
from typing import TextIO

# Control characters except tab and newline, characters that reorder or hide others, surrogates,
# and two that XML does not allow.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
)

_PLAIN_SYMBOLS = "buildsys.plain_symbols"  # name of an error handler
_SUBSTITUTES = {
    "→": "->", "⇢": "->", "…": "...", "≤": "<=", "≥": ">=", "✓": "ok", "✗": "failed", "·": "|",
    "\N{EM DASH}": "-", "\N{EN DASH}": "-", "\N{MULTIPLICATION SIGN}": "x",
    "\N{PLUS-MINUS SIGN}": "+-", "\N{MICRO SIGN}": "u",
}  # fmt: skip


def _substitute(error: UnicodeError) -> tuple[str, int]:
    """Return a replacement for characters that an encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_SUBSTITUTES.get(char, "?") for char in missing), error.end


codecs.register_error(_PLAIN_SYMBOLS, _substitute)


def use_plain_symbols(*streams: TextIO) -> None:
    """Let streams in ASCII or Latin-1 print ``->`` for an arrow, where they would fail."""
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_PLAIN_SYMBOLS)


def printable(text: str) -> str:
    """Return ``text`` without unsafe characters.

    Lines stay lines.
    """
    if text.isascii() and text.isprintable():  # nearly always, and three times as fast
        return text
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def printable_line(text: str) -> str:
    """Return ``text`` as one printable line."""
    return printable(text.replace("\n", " "))
