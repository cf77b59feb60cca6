import re
import sys
import time

import pytest
from cli_doubles import Terminal

from buildsys.cli.console.rows import Row, format_table, print_rows, time_ago

NOW_S = 1_790_000_000


@pytest.fixture(autouse=True)
def _frozen_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_S)


def utc(seconds_ago: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW_S - seconds_ago))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (5, "5 s ago"),
        (90, "1 min ago"),
        (7300, "2 h ago"),
        (86500, "1 day ago"),
        (9e5, "10 days ago"),
    ],
)
def test_a_past_time_is_shown_with_its_age(seconds: float, expected: str) -> None:
    moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(NOW_S - seconds))
    assert time_ago(utc(seconds)) == f"{expected} ({moment})"


def test_a_clock_set_back_and_a_broken_record_do_not_fail() -> None:
    assert time_ago(utc(-5000)).startswith("0 s ago (")
    assert time_ago("yesterday") == "yesterday"


def test_rows_are_plain_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("stale", "export:m", ["a: 1 → 2"]), Row("may rerun", "bench:m", note="why")]
    print_rows(rows, ["2 targets"])
    assert capsys.readouterr().out == (
        "stale      export:m\n             a: 1 → 2\nmay rerun  bench:m  why\n2 targets\n"
    )


def test_on_a_terminal_lines_are_printed_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    print_rows([Row("run", "export:m", ["word " * 12], "remark " * 8)], ["done [bold]"])
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in out.getvalue().splitlines()]
    assert lines[0] == f"run  export:m  {'remark ' * 8}".rstrip()
    assert lines[1] == f"       {'word ' * 12}".rstrip()
    assert lines[-1] == "done [bold]"


def test_tables_align_columns_and_count_wide_characters_twice() -> None:
    assert format_table(("name", "size>"), [("a", "10"), ("日本", "5")]) == [
        "name  size",
        "a       10",
        "日本     5",
    ]
