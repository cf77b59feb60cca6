from __future__ import annotations

import io
import re
import time

import pytest

from buildsys.cli.console.listing import Entry, moment, write_page


def utc(seconds_ago: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds_ago))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (5, "[5-7] s ago"),
        (90, "1 min ago"),
        (7300, "2 h ago"),
        (86500, "1 day ago"),
        (9e5, "10 days ago"),
    ],
)
def test_a_moment_is_told_as_people_ask(seconds: float, told: str) -> None:
    assert re.fullmatch(rf"{told} \(\d{{4}}-\d\d-\d\d \d\d:\d\d UTC\)", moment(utc(seconds)))


def test_a_clock_that_was_set_back_and_a_broken_record_are_no_reason_to_fail() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", moment(utc(-5000)))
    assert moment("yesterday") == "yesterday"


def test_a_page_is_plain_lines_where_nobody_looks() -> None:
    out = io.StringIO()
    write_page(
        out,
        [Entry("stale", "export:m", ["a: 1 → 2"]), Entry("may rerun", "bench:m", remark="why")],
        ["2 targets"],
    )
    assert (
        out.getvalue()
        == "stale      export:m\n             a: 1 → 2\nmay rerun  bench:m  why\n2 targets\n"
    )


def test_on_a_terminal_long_lines_are_folded_beside_their_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    write_page(out, [Entry("run", "export:m", ["word " * 12], "remark " * 8)], ["done [bold]"])
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in out.getvalue().splitlines()]
    assert lines[0].startswith("run  export:m  remark")
    assert lines[1].startswith(" " * 15 + "remark")
    assert max(map(len, lines)) <= 40
    assert [line for line in lines if "word" in line][1].startswith("       word")
    assert lines[-1] == "done [bold]"
