"""doit on our tasks, in this process, with a scripted executor."""

import os
import pty
import re
import threading

import pytest
from cli_doubles import Doit, fail, make_session, passed
from doit.cmd_base import ModuleTaskLoader
from doit.doit_cmd import DoitMain

from buildsys.cli.console.reporter import NOTICE
from buildsys.cli.tasks import BACKENDS, ProjectTasks, doit_config
from buildsys.errors import CheckFailed
from buildsys.execution.run_records import Outcome


def test_nothing_to_do_is_one_line(doit: Doit) -> None:
    doit.build_all()
    assert doit() == (0, f"everything is up to date ({len(doit.fresh)} targets)\n")
    assert doit("export:net") == (0, "everything is up to date (1 target)\n")


def test_a_failed_check_ends_with_1_and_prints_its_reason_and_log_once(doit: Doit) -> None:
    doit.build_all()
    doit.fresh.discard("validate:net")
    doit.actions["validate:net"] = fail(
        CheckFailed("output y: relative error 0.5", "raise validate.rtol")
    )
    code, out = doit("build:net")
    assert code == 1
    # at the failure, and at the end
    assert out.count("output y: relative error 0.5; raise validate.rtol") == 2
    assert "log: build/net/validate/result.log" in out
    assert "Traceback" not in out
    assert "1 failed" in out


@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_continue_builds_what_does_not_depend_on_the_failure(
    doit: Doit, processes: tuple[str, ...]
) -> None:
    doit.actions["verify:net:ort"] = fail(CheckFailed("output y is off"))
    code, out = doit("--continue", *processes)
    assert code == 1, "a failed check stays 1, though targets downstream did not run"
    done = {
        target for target, finished in doit.session.finished.items() if finished.status == "passed"
    }
    assert doit.session.actions.keys() - done == {"verify:net:ort", "bench:net:ort", "report:net"}
    assert "needs verify:net:ort" in out
    assert "1 failed, 2 not run in" in out


def test_an_unexpected_exception_is_one_line_and_a_file(doit: Doit) -> None:
    doit.actions["export:net"] = fail(ZeroDivisionError("division by zero\nand more"))
    code, out = doit("export:net")
    assert code == 2
    assert "Traceback" not in out
    (log,) = (doit.root / ".buildsys/logs").iterdir()
    assert (
        f"unexpected ZeroDivisionError: division by zero; traceback: .buildsys/logs/{log.name}\n"
        in out
    )
    assert "Traceback" in log.read_text()


def test_targets_built_meanwhile_by_another_run_are_not_counted(doit: Doit) -> None:
    doit.build_all()
    doit.fresh.discard("bench:net:ort")
    doit.actions["bench:net:ort"] = lambda: passed(waited=True, seconds=99.0)
    code, out = doit()
    assert code == 0
    assert "fresh        bench:net:ort  built by another run meanwhile\n" in out
    assert "99" not in out
    assert out.endswith(f"everything is up to date ({len(doit.session.actions)} targets)\n")


def test_a_damaged_file_of_marks_has_none(doit: Doit) -> None:
    (doit.root / ".buildsys").mkdir()
    (doit.root / ".buildsys/ignored.json").write_text("{")
    assert doit("export:net")[0] == 0


@pytest.mark.parametrize(("interrupted", "code"), [(False, "1"), (True, "130")])
def test_on_a_terminal_finished_targets_stay_and_the_rest_is_redrawn(
    doit: Doit, monkeypatch: pytest.MonkeyPatch, *, interrupted: bool, code: str
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    controller, terminal = pty.openpty()
    session, executor = make_session(doit.root)
    session.project.state.mkdir()

    def interrupt() -> Outcome:
        session.interrupt(130)
        raise KeyboardInterrupt

    failed = fail(CheckFailed("output y is off"))
    executor.actions["verify:net:ort"] = interrupt if interrupted else failed
    config = doit_config(session)
    with os.fdopen(terminal, "w", encoding="utf-8") as out:
        reporter = config["reporter"](out, {})
        config["reporter"] = reporter
        namespace = {"DOIT_CONFIG": config, "task_targets": ProjectTasks(session)}
        read: list[bytes] = []
        reader = threading.Thread(target=_read_all, args=(controller, read))
        reader.start()
        with pytest.raises(SystemExit, match=code):
            DoitMain(ModuleTaskLoader(namespace), extra_config={"BACKEND": BACKENDS}).run([])
    reader.join()
    os.close(controller)
    text = b"".join(read).decode()
    assert "done" in text
    assert text.count("output y is off") == (0 if interrupted else 2), "at once, and at the end"
    _, _, after = text.rpartition("\x1b[?25h")
    assert "\x1b[?25l" not in after, "the cursor is shown again"
    assert "targets done" not in after, "the progress is removed"
    row = r"verify ort +\S*not run\S* +interrupted"
    assert bool(re.search(row, after)) is interrupted
    assert after.endswith(f"{NOTICE.strip()}\r\n") is interrupted


def _read_all(handle: int, into: list[bytes]) -> None:
    while True:
        try:
            into.append(os.read(handle, 65536))
        except OSError:  # the other end is closed
            return
