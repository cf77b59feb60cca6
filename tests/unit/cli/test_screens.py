from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from front_doubles import make_session, write_result

from buildsys.cli.console.progress import LiveScreen, PlainScreen, open_screen
from buildsys.cli.console.run_summary import tell_end
from buildsys.cli.console.target_line import Line, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def line(status: str, **changes: object) -> Line:
    return Line("engine:net:ort", "net", "engine", "ort", status, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.04, "0.0 s"),
        (1.84, "1.8 s"),
        (59.94, "59.9 s"),
        (59.96, "1:00 min"),
        (605.4, "10:05 min"),
    ],
)
def test_durations(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_only_a_capable_terminal_gets_the_live_display(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(out: io.StringIO) -> type:
        return type(open_screen(out, list, str))

    monkeypatch.setenv("TERM", "xterm")
    assert opened(Terminal()) is LiveScreen
    assert opened(io.StringIO()) is PlainScreen
    monkeypatch.setenv("TERM", "dumb")
    assert opened(Terminal()) is PlainScreen


def test_plain_lines() -> None:
    out = io.StringIO()
    screen = PlainScreen(out)
    screen.started(line("running", why="export.opset: 17 → 18"))
    screen.ended(line("passed", seconds=1.84))
    screen.ended(line("unavailable", seconds=0.2, reason="no GPU"))
    screen.ended(
        line(
            "failed", seconds=3.21, reason="output y is off", log="build/net/engine/ort/engine.log"
        )
    )
    screen.close()
    assert out.getvalue().splitlines() == [
        "run          engine:net:ort  … export.opset: 17 → 18",
        "done         engine:net:ort  1.8s",
        "unavailable  engine:net:ort  0.2s  no GPU",
        "failed       engine:net:ort  3.2s  output y is off",
        "             log: build/net/engine/ort/engine.log",
    ]


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_the_live_display_shortens_messages_and_never_names(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "20")
    running = [line("running", began=time.monotonic() - 75, message="case opt " * 30)]
    out = Terminal()
    screen = LiveScreen(out, lambda: running, lambda: "3 of 8 targets done")
    screen.started(running[0])
    screen.close()
    (row,) = {text for text in out.getvalue().split("\n") if "engine:net:ort" in text}
    assert "engine:net:ort" in row
    assert "1:15 min" in row
    assert "3 of 8 targets done" in out.getvalue()


def test_no_color_means_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for no_color, colored in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        out = Terminal()
        LiveScreen(out, list, str).ended(line("failed", seconds=1.0, reason="off"))
        assert ("\x1b[1;31m" in out.getvalue()) is colored


def test_warnings_of_what_ran_stand_under_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session, _ = make_session(tmp_path)
    write_result(
        session,
        "export:net",
        status="passed",
        warnings=["symbolics[0] was\nnot used", "long " * 100],
    )
    write_result(
        session,
        "simplify:net",
        status="passed",
        warnings=[f"warning {number}" for number in range(9)],
    )
    write_result(session, "validate:net", status="passed", warnings=["of an earlier run"])
    write_result(
        session, "report:net", status="passed", warnings=["export:net: symbolics[0] was not used"]
    )
    lines = [
        Line(target, action.model, action.stage, action.variant)
        for target, action in session.actions.items()
    ]
    for entry in lines:
        entry.status = "fresh" if entry.stage == "validate" else "passed"
    out = io.StringIO()
    tell_end(out, session, lines, 1.0)
    told = [line for line in out.getvalue().splitlines() if "warning" in line]
    assert told[0] == "warning: export:net: symbolics[0] was not used"
    assert len(told[1]) < 300
    assert told[1].endswith("…")
    assert told[2:] == [
        *(f"warning: simplify:net: warning {n}" for n in range(3)),
        "and 6 more warnings, in the report",
    ]
    assert "earlier run" not in out.getvalue()


@pytest.mark.parametrize("columns", [50, 80, 160])
def test_the_closing_table_fits_its_terminal(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(tmp_path)
    session, _ = make_session(tmp_path)
    write_result(session, "engine:net:rtx", status="unavailable", reason="no GPU can run it " * 8)
    write_result(session, "export:net", status="passed", opset=17, nodes=122, bytes=1000)
    write_result(session, "report:net", status="passed")
    lines = [
        Line(target, action.model, action.stage, action.variant)
        for target, action in session.actions.items()
    ]
    for entry in lines:
        entry.status, entry.seconds = "passed", 1.0
    lines[4].status, lines[4].log = "failed", "x.log"
    out = io.StringIO()
    tell_end(out, session, lines, 12.34)
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= columns
    assert "opset 17" in text
    assert "report: build/net/report/report.md\n" in text
    assert text.splitlines()[-1] == "10 passed, 1 failed in 12.3 s"


def test_models_in_which_nothing_ran_get_no_table(tmp_path: Path) -> None:
    session, _ = make_session(tmp_path, "a", "b")
    lines = [
        Line(target, action.model, action.stage, action.variant)
        for target, action in session.actions.items()
    ]
    for entry in lines:
        entry.status = "passed" if entry.model == "a" else "fresh"
    out = io.StringIO()
    tell_end(out, session, lines, 1.0)
    titles = [text.strip() for text in out.getvalue().splitlines() if text.strip() in ("a", "b")]
    assert titles == ["a"]
