from __future__ import annotations

import io
import math
import re
import sys
import time

import pytest

from buildsys.cli.console.rows import (
    Row,
    format_table,
    plot_lines,
    print_rows,
    text_console,
    time_ago,
)


def utc(seconds_ago: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds_ago))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (5, "[5-7] s ago"),
        (90, "1 min ago"),
        (7300, "2 h ago"),
        (86500, "1 day ago"),
        (9e5, "10 days ago"),
    ],
)
def test_a_past_time_is_shown_with_its_age(seconds: float, expected: str) -> None:
    assert re.fullmatch(rf"{expected} \(\d{{4}}-\d\d-\d\d \d\d:\d\d UTC\)", time_ago(utc(seconds)))


def test_a_clock_set_back_and_a_broken_record_do_not_fail() -> None:
    assert time_ago(utc(-5000)).startswith("0 s ago (")
    assert time_ago("yesterday") == "yesterday"


def test_rows_are_plain_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("stale", "export:m", ["a: 1 → 2"]), Row("may rerun", "bench:m", note="why")]
    print_rows(rows, ["2 targets"])
    assert capsys.readouterr().out == (
        "stale      export:m\n             a: 1 → 2\nmay rerun  bench:m  why\n2 targets\n"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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


class ClosedPipe(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_a_closed_pipe_does_not_end_the_process() -> None:
    with pytest.raises(BrokenPipeError):
        text_console(ClosedPipe()).print("a row")


def test_values_and_intervals_are_drawn_from_left_to_right() -> None:
    lines = plot_lines([(1.0, None), (2.0, (1.5, 2.5)), (4.0, None)])
    assert lines == [
        "4.0 ┤         ●",
        "3.5 ┤",
        "3.0 ┤",
        "2.5 ┤     │",
        "2.0 ┤     ●",
        "1.5 ┤     │",
        "1.0 ┤ ●",
    ]


def test_a_flat_line_stays_flat() -> None:
    lines = plot_lines([(1.0, None), (1.0001, None)], ascii_only=True)
    assert [line.count("*") for line in lines] == [0, 0, 2, 0, 0]
    assert "\n".join(lines).isascii()


def test_the_last_values_are_shown_in_80_columns() -> None:
    lines = plot_lines([(float(n), None) for n in range(1000)])
    assert max(map(len, lines)) <= 78
    assert lines[-1].startswith("  940")


def test_what_is_not_finite_is_left_out() -> None:
    assert plot_lines([(math.nan, None)]) == []
    assert plot_lines([(1.0, (math.nan, 2.0)), (1.0, None)]) == plot_lines([(1.0, None)])
