from __future__ import annotations

import io

import pytest

from buildsys.system.printable import printable, printable_line, use_plain_symbols

MARK = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "unsafe",
    [
        "\x1b",
        "\x07",
        "\x00",
        "\r",
        "\x7f",
        "\x9b",
        "\u202e",
        "\u2066",
        "\u2028",
        "\ud800",
        "\uffff",
    ],
)
def test_characters_that_control_a_terminal_are_replaced(unsafe: str) -> None:
    assert printable(f"a{unsafe}b") == f"a{MARK}b"


def test_text_of_any_language_stays() -> None:
    text = "größe\t重み\n‌می‌خواهم 👩\u200d💻 → 1\u00a0\N{MULTIPLICATION SIGN}\u00a02"
    assert printable(text) == text
    assert printable_line("a\nb") == "a b"


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", "2 → 3 \N{MULTIPLICATION SIGN} 1 ≤ …"),
        ("latin-1", "2 -> 3 \N{MULTIPLICATION SIGN} 1 <= ..."),
        ("ascii", "2 -> 3 x 1 <= ..."),
    ],
)
def test_symbols_have_plain_forms_in_other_encodings(encoding: str, shown: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    use_plain_symbols(stream)
    stream.write("2 → 3 \N{MULTIPLICATION SIGN} 1 ≤ …")
    stream.flush()
    assert raw.getvalue().decode(encoding) == shown
    stream.write("\ud800 重")
    stream.flush()
    assert raw.getvalue().decode(encoding).startswith(f"{shown}? ")
