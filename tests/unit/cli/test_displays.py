import io
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_doubles import Terminal, make_session, write_result

from buildsys.cli.console.progress import ConsoleLine, Display, last_line, target_line
from buildsys.cli.console.run_summary import print_summary
from buildsys.cli.session import BuildSession
from buildsys.execution.run_records import Outcome

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def line(status: str, **changes: object) -> ConsoleLine:
    name = ("engine:net:ort", "net", "engine", "ort")
    return ConsoleLine(*name, status, **changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


@pytest.mark.parametrize(("term", "is_live"), [("xterm", True), ("dumb", False)])
def test_only_a_capable_terminal_is_redrawn(
    monkeypatch: pytest.MonkeyPatch, term: str, *, is_live: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    for out, is_redrawn in ((Terminal(), is_live), (io.StringIO(), False)):
        display = Display(out, {})
        display.started(line("running"), "run", "")
        display.close()
        assert bool(CONTROL.search(out.getvalue())) == is_redrawn


def test_plain_lines() -> None:
    out = io.StringIO()
    display = Display(out, {})
    display.started(line("running"), "run", "… export.opset: 17 → 18")
    display.ended(line("passed", seconds=1.84))
    display.ended(line("unavailable", seconds=0.2, reason="no GPU"))
    display.ended(
        line(
            "failed", seconds=3.21, reason="output y is off", log="build/net/engine/ort/engine.log"
        )
    )
    display.close()
    assert out.getvalue().splitlines() == [
        "run          engine:net:ort  … export.opset: 17 → 18",
        "done         engine:net:ort  1.84 s",
        "unavailable  engine:net:ort  200 ms  no GPU",
        "failed       engine:net:ort  3.21 s  output y is off",
        "             log: build/net/engine/ort/engine.log",
    ]


def test_a_heartbeat_shows_what_runs_in_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "engine.log"
    log.write_text("# engine:net:ort\ntiming conv1\n[W] slow\n\n")
    running = line("running", began=100.0, message="timing conv1", counter="4,711 tactics")
    running.log_file = log
    lines = {running.target: running, "export:net": target_line("export:net")}
    out = io.StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: 160.0)
    display = Display(out, lines)
    display.beat()
    running.status = "passed"
    display.beat()
    display.close()
    text = "4,711 tactics · timing conv1 · [W] slow  (0 of 2 targets done)"
    assert out.getvalue() == f"running      engine:net:ort  1 min 0 s  {text}\n"


def test_the_last_line_of_a_log_is_its_state(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert last_line(log) == ""
    log.write_text("# export:a, 2026-11-22T10:00:00Z, process 4711\n")
    assert last_line(log) == ""
    log.write_bytes(b"x" * 10_000 + b"\n 10 %|#    |\r 20 %|##   |\r")
    assert last_line(log) == "20 %|##   |"
    log.write_bytes(b"\xff\xfe broken \n\n")
    assert last_line(log).endswith("broken")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_live_display_shortens_messages_and_never_names(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "20")
    running = line("running", message="case opt " * 30)
    lines = {f"{number}": line("passed") for number in range(3)} | {"running": running}
    running.target = "running"
    out = Terminal()
    display = Display(out, lines)
    display.started(running, "run", "")
    display.close()
    display.started(running, "run", "")  # too late: nothing is drawn below the summary
    rows = {CONTROL.sub("", text) for text in re.split(r"[\r\n]+", out.getvalue())}
    assert any(re.search(r"running +0:00:00 +case opt", row) for row in rows)
    assert any("3 of 4 targets done" in row for row in rows)
    assert max(map(len, rows)) <= columns
    drawn = [row for row in rows if "running" in row or "targets done" in row]
    assert max(map(len, drawn)) <= columns - 2, "room for the ^C of the terminal"


def test_target_names_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    names = ["bench:b:ort", "engine:car:[red]"]  # rich has emojis of these names
    out = Terminal()
    lines = {name: ConsoleLine(name, "b", "bench", "ort", "running") for name in names}
    display = Display(out, lines)
    for entry in lines.values():
        display.started(entry, "run", "")
    display.close()
    assert all(name in out.getvalue() for name in names)


def test_warnings_of_targets_that_ran_follow_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session, _ = make_session(tmp_path)
    for target, warnings in {
        "export:net": ["symbolics[0] was\nnot used", "long " * 100],
        "simplify:net": [f"warning {number}" for number in range(9)],
        "validate:net": ["of an earlier run"],
        "report:net": ["export:net: symbolics[0] was not used"],
    }.items():
        write_result(session, target, status="passed", warnings=warnings)
    lines = [
        ConsoleLine(target, action.model, action.stage, action.variant)
        for target, action in session.actions.items()
    ]
    for entry in lines:
        entry.status = "fresh" if entry.stage == "validate" else "passed"
    out = io.StringIO()
    print_summary(out, session, lines)
    found = [line for line in out.getvalue().splitlines() if "warning" in line]
    assert found[0] == "warning: export:net: symbolics[0] was not used"
    assert len(found[1]) < 300
    assert found[2:] == [
        *(f"warning: simplify:net: warning {n}" for n in range(3)),
        "and 6 more warnings, in the report",
    ]
    assert "earlier run" not in out.getvalue()


REASON = "the median is only known within ±30 %, and " * 4
REMEDY = "`buildsys build --remeasure net` measures again"


def test_a_long_reason_is_folded_and_remedies_of_several_targets_are_repeated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session, _ = make_session(tmp_path)
    lines = [*map(line_of(session), ("bench:net:ort", "bench:net:rtx"))]
    for one in lines:
        one.status, one.seconds, one.reason, one.hint = "noisy", 1.0, REASON, REMEDY
    out = io.StringIO()
    Display(out, {}).ended(lines[0])
    (line,) = out.getvalue().splitlines()
    assert line.startswith("noisy        bench:net:ort  1.00 s  the median is only known")
    assert (line[-1], len(line) < 170) == ("…", True)
    print_summary(out, session, lines)
    *_, closing, total = out.getvalue().splitlines()
    assert closing == f"noisy        bench:net:ort, bench:net:rtx: {REMEDY}"
    assert total.startswith("2 noisy in")


def test_failures_follow_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session, _ = make_session(tmp_path)
    names = ["export:net", "reference:net", "simplify:net", "engine:net:ort", "validate:net"]
    fresh, restored, also_restored, failed, shown = map(line_of(session), names)
    fresh.status, restored.status, also_restored.status = "fresh", "restored", "restored"
    for one, seconds in ((restored, 60.0), (also_restored, 5.0)):
        session.finished[one.target] = Outcome(one.target, "passed", seconds, restored=True)
    failed.status, failed.seconds, failed.reason = "failed", 1.5, "no tactic\nremedies:\n  a: 1"
    failed.log = "build/net/engine/ort/engine.log"
    shown.status, shown.seconds, shown.reason = "failed", 2.0, "y is off"
    shown.hint = "export: {opset: 18}\n  # tried"
    lines = [fresh, restored, also_restored, failed, shown]
    out = io.StringIO()
    session.began = time.monotonic() - 3.0
    print_summary(out, session, lines)
    *listed, total = out.getvalue().splitlines()
    assert total.startswith("2 restored, 1 fresh, 2 failed in 3.0")
    assert listed[-11:] == [
        "failed       engine:net:ort  1.50 s  no tactic",
        "  remedies:",
        "    a: 1",
        "  log: build/net/engine/ort/engine.log",
        "  rerun it alone: buildsys debug engine:net:ort",
        "",
        "failed       validate:net  2.00 s  y is off",
        "  export: {opset: 18}",
        "    # tried",
        "  rerun it alone: buildsys debug validate:net",
        "",
    ]


def line_of(session: BuildSession) -> Callable[[str], ConsoleLine]:
    def line(target: str) -> ConsoleLine:
        action = session.actions[target]
        return ConsoleLine(target, action.model, action.stage, action.variant)

    return line
