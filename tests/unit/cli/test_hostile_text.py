"""Text of models, libraries and manifests on the terminal."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_doubles import Terminal, make_session, write_result

from buildsys.cli.command import print_lines
from buildsys.cli.console.progress import ConsoleLine, Display
from buildsys.cli.console.rows import Row, print_rows
from buildsys.cli.console.run_summary import print_summary

HOSTILE = "name\x1b]0;title\x07\x1b[2J\u202etxt.exe\r\x9b31m"
RICH = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|[0-9]*[AK])|\r(?=\x1b|$)")
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture(params=[io.StringIO, Terminal])
def out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TERM", "xterm")
    return request.param()


def shown(stream: io.StringIO) -> str:
    """Return what was printed, without the sequences of rich."""
    text = RICH.sub("", stream.getvalue())
    assert not UNSAFE.search(text)
    assert "name" in text
    return text


def test_rows_and_lines(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out)
    print_rows([Row("stale", HOSTILE, [HOSTILE], HOSTILE)], [HOSTILE])
    print_lines([f"{HOSTILE}\nstale  other:target"])
    assert "\nstale  other" not in shown(out)


def test_displays_of_targets(out: io.StringIO) -> None:
    ended = {
        f"engine:{status}": ConsoleLine(
            f"engine:{status}", "net", "engine", "", status, why=HOSTILE, reason=HOSTILE,
            log=HOSTILE, message=HOSTILE,
        )
        for status in ("running", "passed", "failed", "unavailable")
    }  # fmt: skip
    display = Display(out, ended)
    for line in ended.values():
        display.started(line, "run", HOSTILE)
        if line.status != "running":
            display.ended(line)
    display.close()
    shown(out)


def test_a_summary_with_warnings(out: io.StringIO, tmp_path: Path) -> None:
    session, _ = make_session(tmp_path)
    target = next(name for name in session.actions if name.startswith("export:"))
    write_result(session, target, status="unavailable", reason=HOSTILE, warnings=[HOSTILE])
    model = session.actions[target].model
    lines = [ConsoleLine(target, model, "export", "", "unavailable", seconds=1.0, reason=HOSTILE)]
    print_summary(out, session, lines)
    shown(out)
