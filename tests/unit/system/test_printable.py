from __future__ import annotations

import io

import pytest

from buildsys.system.printable import printable, printable_line, tolerate_other_encodings

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


def test_a_stream_in_another_encoding_prints_a_question_mark() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    tolerate_other_encodings(stream)
    stream.write("größe 2 → 3 \ud800")
    stream.flush()
    assert raw.getvalue().decode("latin-1") == "größe 2 ? 3 ?"
