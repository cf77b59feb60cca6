"""The line on what is left of earlier passes."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from front_doubles import make_session, write_result

from buildsys.cli.console.run_summary import tell_end
from buildsys.cli.console.target_line import Line
from buildsys.cli.failures.stale_outputs import LeftBehind, after_failure
from buildsys.cli.session import Finished

FOLDER = "build/net"


def test_the_line() -> None:
    moments = ("2026-11-20T14:03:11.123Z",)
    assert LeftBehind("net", ("engine:net:ort",), moments).line(FOLDER) == (
        "build/net: engine ort is still of the pass of 2026-11-20 14:03 UTC, not what is asked for now"
    )
    several = LeftBehind(
        "net", ("engine:net:ort", "report:net"), (*moments, "2026-11-19T10:00:00Z")
    )
    assert several.line(FOLDER).startswith(
        "build/net: engine ort, report are still of the pass of 2026-11-20 14:03 UTC or earlier"
    )
    many = LeftBehind("net", tuple(f"engine:net:e{number}" for number in range(9)), moments)
    assert many.line(FOLDER).startswith(
        "build/net: engine e0, engine e1, engine e2, engine e3, engine e4, engine e5 and 3 more "
    )
    untold = LeftBehind("net", problem="no space is left").line(FOLDER)
    assert (
        untold == "build/net: what is left there of earlier passes cannot be told: no space is left"
    )
    assert LeftBehind("net", report="net/report/report.md").line(FOLDER) == ""


def test_what_failed_or_waits_behind_it_is_no_part_of_the_present(tmp_path: Path) -> None:
    session, executor = make_session(tmp_path)
    for target in session.actions:
        write_result(session, target, status="passed", started="2026-11-20T14:03:11Z")
        result = session.project.build / session.actions[target].outputs["result"].path
        result.write_text(json.dumps({**json.loads(result.read_text()), "target": target}))
    executor.fresh = {"export:net", "reference:net", "simplify:net", "engine:net:ort"}
    session.finished["validate:net"] = Finished("failed", 1.0, "y differs")
    (found,) = after_failure(session, ["net"])
    assert found.report == "net/report/report.md"
    assert found.targets[:2] == ("engine:net:rtx", "verify:net:ort")
    assert not set(found.targets) & {*executor.fresh, "report:net"}
    text = (session.project.build / found.report).read_text()
    assert "FAILED: validate:net: y differs" in text


def test_where_all_is_up_to_date_nothing_is_told(tmp_path: Path) -> None:
    session, executor = make_session(tmp_path)
    for target in session.actions:
        write_result(session, target, status="passed")
    executor.fresh = set(session.actions)
    report = (session.project.build / "net/report/report.md").read_bytes()
    assert after_failure(session, ["net"]) == []
    assert (session.project.build / "net/report/report.md").read_bytes() == report


def test_what_goes_wrong_is_told_and_not_raised(tmp_path: Path) -> None:
    session, executor = make_session(tmp_path)

    def break_down(target: str) -> None:
        raise AttributeError("nobody expected this")

    executor.examine = break_down  # type: ignore[method-assign,assignment]
    (found,) = after_failure(session, ["net"])
    assert found.problem.startswith("unexpected AttributeError; traceback: ")
    assert "nobody expected this" in Path(found.problem.rpartition("traceback: ")[2]).read_text()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_the_closing_part_says_it_whole(
    stream: type[io.StringIO], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    session, _ = make_session(tmp_path, "net", "other", *(f"m{number}" for number in range(11)))
    lines = [
        Line(name, action.model, action.stage, action.variant)
        for name, action in session.actions.items()
    ]
    lines[0].status = "failed"
    moments = ("2026-11-20T14:03:11Z",)
    left = [
        LeftBehind(model, (f"engine:{model}:ort",), moments, "r.md")
        for model in session.project.models
    ]
    out = stream()
    tell_end(out, session, lines, 1.0, left)
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    told = "engine ort is still of the pass of 2026-11-20 14:03 UTC, not what is asked for now\n"
    assert f"report: build/r.md, on this run\nbuild/net: {told}" in text
    assert text.count("on this run") == 1  # of models that were not come to the line is enough
    assert f"\nbuild/other: {told}" in text
    assert "\nand the same of 2 more models\n" in text
    plain = stream()
    tell_end(plain, session, lines, 1.0)
    assert "is still of the pass" not in plain.getvalue()
