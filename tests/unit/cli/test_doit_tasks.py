"""doit on our tasks, in this process, with a scripted executor."""

from __future__ import annotations

import io
import json
import os
import pty
import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_doubles import ScriptedExecutor, make_session, passed
from doit.cmd_base import ModuleTaskLoader
from doit.doit_cmd import DoitMain

from buildsys.cli.commands.doit_commands import DoitCommand, List
from buildsys.cli.session import Session
from buildsys.cli.tasks import SessionTask, doit_config
from buildsys.errors import CheckFailed, StageError, WorkerDied
from buildsys.plan.project_plan import model_of

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


class Doit:
    """A project and doit's command line on it; every call is a new session."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.executor: ScriptedExecutor
        self.session: Session
        self._capsys = capsys
        self.fresh: set[str] = set()
        self.actions: dict[str, Callable[[], Any]] = {}
        self.reasons: dict[str, str] = {}
        self.models: tuple[str, ...] = ("net",)

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """Return the exit code and all that was printed."""
        self.session, self.executor = make_session(self.root, *self.models)
        self.executor.fresh, self.executor.actions, self.executor.reasons = (
            self.fresh,
            self.actions,
            self.reasons,
        )
        self.session.project.state.mkdir(exist_ok=True)
        config, create_tasks = doit_config(self.session)
        out = io.StringIO()  # doit's run keeps the stdout that it found when it was imported
        namespace = {"DOIT_CONFIG": {**config, "outfile": out}, "task_targets": create_tasks}
        try:
            code = DoitMain(ModuleTaskLoader(namespace)).run(list(arguments))
        except SystemExit as error:
            code = error.code
        printed = self._capsys.readouterr()
        return code or 0, out.getvalue() + printed.out + printed.err

    def build_all(self) -> None:
        """Make every target fresh, with its files."""
        code, _ = self("build")
        assert code == 0
        self.fresh.update(self.session.actions)


@pytest.fixture
def doit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Doit]:
    monkeypatch.chdir(tmp_path)
    shutil.copy(PYPROJECT, tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield Doit(tmp_path, capsys)
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def fail(error: BaseException) -> Callable[[], Any]:
    def raise_it() -> Any:
        raise error

    return raise_it


def test_a_build_prints_each_target_and_ends_with_a_table(doit: Doit) -> None:
    doit.reasons["export:net"] = "export.opset: 17 → 18"
    code, out = doit("build:net")
    assert code == 0
    assert "run          export:net  … export.opset: 17 → 18\n" in out
    assert "done         export:net  100 ms\n" in out
    assert "report: build/net/report/report.md" in out
    assert f"{len(doit.session.actions)} passed in" in out


def test_nothing_to_do_is_one_line(doit: Doit) -> None:
    doit.build_all()
    assert doit() == (0, f"everything is up to date ({len(doit.fresh)} targets)\n")
    assert doit("export:net") == (0, "everything is up to date (1 target)\n")


def test_only_the_stale_target_runs_and_the_rest_is_called_fresh(doit: Doit) -> None:
    doit.build_all()
    doit.fresh.discard("bench:net:ort")
    code, out = doit()
    assert code == 0
    assert list(doit.session.finished) == ["bench:net:ort"]
    assert f"1 passed, {len(doit.fresh)} fresh in" in out


def test_a_missing_output_makes_its_target_run(doit: Doit) -> None:
    doit.build_all()
    (doit.root / "build/net/validate/result.json").unlink()
    doit()
    assert list(doit.session.finished) == ["validate:net"]


def test_a_failed_check_ends_with_1_and_prints_its_reason_and_log_once(doit: Doit) -> None:
    doit.build_all()
    doit.fresh.discard("validate:net")
    doit.actions["validate:net"] = fail(
        CheckFailed("output y: relative error 0.5", "raise validate.rtol")
    )
    code, out = doit("build:net")
    assert code == 1
    assert out.count("output y: relative error 0.5; raise validate.rtol") == 1
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


def test_an_error_ends_with_2(doit: Doit) -> None:
    doit.actions["export:net"] = fail(StageError("operator aten::foo is not in opset 9"))
    code, out = doit("--continue")
    assert code == 2
    assert out.count("operator aten::foo is not in opset 9") == 1


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


def test_unavailable_is_not_called_passed(doit: Doit) -> None:
    gone = passed(status="unavailable", reason="no GPU", hint="run it on one")
    doit.actions["engine:net:rtx"] = lambda: gone
    code, out = doit()
    assert code == 0
    assert "unavailable  engine:net:rtx  100 ms  no GPU; run it on one\n" in out
    assert f"{len(doit.session.actions) - 1} passed, 1 unavailable in" in out
    doit.fresh.update(doit.session.actions.keys() - {"export:net"})
    _, out = doit()
    assert "engine rtx" in out
    row = next(line for line in out.splitlines() if "engine rtx" in line)
    assert "unavailable" in row
    assert "no GPU" in row


GONE = passed(status="unavailable", reason="no GPU", hint="run it on one")


def unavailable_since_an_earlier_run(doit: Doit) -> None:
    doit.actions["engine:net:rtx"] = lambda: GONE
    doit.build_all()
    del doit.actions["engine:net:rtx"]


def test_unavailable_remains_visible_with_nothing_to_do(doit: Doit) -> None:
    unavailable_since_an_earlier_run(doit)
    fresh = len(doit.fresh) - 1
    for names in ((), ("build:net",), ("build",)):
        code, out = doit(*names)
        assert code == 0
        assert out.splitlines() == [
            "unavailable  engine:net:rtx  no GPU; run it on one",
            f"everything is up to date ({fresh} targets, 1 unavailable)",
        ]


def test_unavailable_is_not_called_fresh_when_another_target_runs(doit: Doit) -> None:
    unavailable_since_an_earlier_run(doit)
    doit.fresh.discard("report:net")
    _, out = doit()
    assert f"1 passed, {len(doit.fresh) - 1} fresh, 1 unavailable in" in out


@pytest.mark.parametrize("how", [{"restored": True}, {"waited": True}])
def test_unavailable_is_not_called_restored_or_fresh(doit: Doit, how: dict[str, bool]) -> None:
    doit.build_all()
    doit.fresh.discard("engine:net:rtx")
    doit.actions["engine:net:rtx"] = lambda: GONE._replace(**how)
    _, out = doit()
    assert "unavailable  engine:net:rtx  no GPU; run it on one\n" in out
    assert "1 unavailable" in out.splitlines()[-1]
    assert "restored" not in out


def test_unavailable_is_a_result_in_json(doit: Doit) -> None:
    unavailable_since_an_earlier_run(doit)
    doit.fresh.discard("verify:net:rtx")
    doit.actions["verify:net:rtx"] = lambda: GONE
    code, out = doit("-r", "json")
    assert code == 0
    tasks = {task["name"]: task for task in json.loads(out)["tasks"]}
    for target in ("engine:net:rtx", "verify:net:rtx"):
        assert tasks[target]["result"] == "unavailable"
        assert tasks[target]["reason"] == "no GPU; run it on one"
    assert tasks["export:net"]["result"] == "up-to-date"
    assert tasks["export:net"]["reason"] is None


def test_list_and_info_show_unavailable_targets(doit: Doit) -> None:
    unavailable_since_an_earlier_run(doit)
    _, out = doit("list", "--all", "--status")
    assert {line.split()[1] for line in out.splitlines() if line[0] == "N"} == {"engine:net:rtx"}
    _, out = doit("info", "engine:net:rtx")
    assert "\nunavailable: no GPU; run it on one\n" in out


@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_ctrl_c_ends_with_130_and_no_traceback(doit: Doit, processes: tuple[str, ...]) -> None:
    doit.actions["simplify:net"] = fail(KeyboardInterrupt())
    code, out = doit(*processes)
    assert code == 130
    assert "Traceback" not in out
    assert "interrupted" in out


def test_sigterm_ends_with_143(doit: Doit) -> None:
    def terminated() -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        while not doit.session.interrupted:
            time.sleep(0.001)
        raise WorkerDied("simplify:net was stopped")

    doit.actions["simplify:net"] = terminated
    code, out = doit()
    assert code == 143
    assert "failed" not in out
    assert out.endswith("interrupted; finished targets are kept, the rest will run next time\n")


@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_ctrl_c_never_arrives_while_doit_holds_a_lock(
    doit: Doit, processes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KeyboardInterrupt inside of ``queue.Queue.get`` releases a lock that it does not hold."""
    in_lock: list[BaseException] = []
    sent = threading.Event()

    def send_in_lock(lock: Any) -> None:
        if not sent.is_set() and threading.current_thread() is threading.main_thread():
            try:
                with lock:
                    sent.set()
                    signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as error:
                in_lock.append(error)
                raise

    original = queue.Queue.get

    def get(self: Any, *arguments: Any, **options: Any) -> Any:
        if processes:
            send_in_lock(self.mutex)
        return original(self, *arguments, **options)

    def work() -> Any:
        if not processes:
            send_in_lock(threading.Lock())
        while not doit.session.interrupted:
            time.sleep(0.001)
        raise WorkerDied("the worker was stopped")

    monkeypatch.setattr(queue.Queue, "get", get)
    doit.actions["export:net"] = doit.actions["reference:net"] = work
    code, out = doit(*processes)
    assert (code, in_lock) == (130, [])
    assert "Traceback" not in out
    assert out.endswith("interrupted; finished targets are kept, the rest will run next time\n")


def test_ctrl_c_ends_a_run_with_another_reporter_with_130(doit: Doit) -> None:
    def work() -> Any:
        signal.raise_signal(signal.SIGINT)
        while not doit.session.interrupted:
            time.sleep(0.001)
        raise WorkerDied("the worker was stopped")

    doit.actions["export:net"] = work
    assert doit("-r", "zero")[0] == 130


def test_ctrl_c_while_the_tasks_are_loaded_ends_with_130(
    doit: Doit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buildsys.cli.tasks.select", lambda *_: signal.raise_signal(signal.SIGINT))
    code, out = doit()
    assert code == 130
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("arguments", "offered"),
    [
        (("build:ne",), "build:net"),
        (("exprt:net",), "export:net"),
        (("lst",), "list"),
        (("info", "validat:net"), "validate:net"),
        (("list", "bild"), "build"),
        (("forget", "engine:net:otr"), "engine:net:ort"),
        (("clean", "simplify:nt"), "simplify:net"),
        (("ignore", "bnch"), "bench"),
    ],
)
def test_the_nearest_name_is_suggested_for_a_misspelled_one(
    doit: Doit, arguments: tuple[str, ...], offered: str
) -> None:
    code, out = doit(*arguments)
    assert code == 3
    assert out.startswith(f"ERROR: there is no target '{arguments[-1]}'; nearest: {offered}")
    assert out.count("\n") == 1
    assert not doit.session.finished


def test_groups_and_patterns_select_targets(doit: Doit) -> None:
    doit.models = ("a", "b")
    for name, expected in (
        ("engine:a", {"engine:a:ort", "engine:a:rtx"}),
        ("engine:*:ort", {"engine:a:ort", "engine:b:ort"}),
    ):
        doit(name)
        assert {
            target for target in doit.session.finished if target.startswith("engine")
        } == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a", "build:a"),
        ("a:export", "export:a"),
        ("a:ort", "engine:a:ort"),
        ("a:verify:ort", "verify:a:ort"),
        ("a:engine", "engine:a"),
    ],
)
def test_every_spelling_names_the_same_targets(doit: Doit, name: str, expected: str) -> None:
    doit.models = ("a", "b")
    for command in ((), ("list",), ("info",), ("clean", "-n"), ("forget",)):
        doit(*command, name)
        typed = (sorted(doit.session.finished), doit.executor.forgotten)
        _, out = doit(*command, expected)
        assert (sorted(doit.session.finished), doit.executor.forgotten) == typed
        assert "ERROR" not in out
        assert not any(model_of(target) == "b" for target in doit.session.finished)
    assert doit.executor.forgotten


def test_an_ambiguous_name_runs_nothing(doit: Doit) -> None:
    doit.models = ("a", "export")
    for command in ((), ("list",), ("info",), ("clean",), ("forget",), ("ignore",)):
        code, out = doit(*command, "export")
        problem = "ERROR: 'export' is ambiguous; name one of export:*, build:export\n"
        assert (code, out) == (3, problem)
        assert (doit.session.finished, doit.executor.forgotten) == ({}, [])


def test_patterns_are_accepted_by_every_command(doit: Doit) -> None:
    doit.models = ("a", "b")
    doit("forget", "engine:*:ort")
    assert doit.executor.forgotten == ["engine:a:ort", "engine:b:ort"]
    _, out = doit("list", "-q", "*:ort")
    assert out.split()[0] == "bench:a:ort"
    for command in ((), ("list",), ("forget",), ("clean",)):
        code, out = doit(*command, "x*")
        assert code == 3
        assert out == "ERROR: there is no target 'x*'; `doit list --all` lists all targets\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("export:net", "-a", "-s"),
        ("export:net", "--always-execute", "--single"),
        ("export:net", "-n", "2", "-as"),
        ("-a", "export:net", "-s", "--continue"),
        ("run", "export:net", "-s", "-a"),
    ],
)
def test_options_may_follow_target_names(doit: Doit, arguments: tuple[str, ...]) -> None:
    doit.build_all()
    code, _ = doit(*arguments)
    assert code == 0
    assert doit.executor.forced == ["export:net"]


def test_an_unknown_option_is_one_line(doit: Doit) -> None:
    for arguments in (("export:net", "--wrong"), ("list", "export", "--wrong"), ("net", "-n")):
        code, out = doit(*arguments)
        assert code == 3
        assert out.count("\n") == 1
        assert f"; run `doit help {'list' if 'list' in arguments else 'run'}` for its" in out


def test_the_path_of_an_output_selects_its_target(doit: Doit) -> None:
    doit("build/net/export/model.onnx")
    assert list(doit.session.finished) == ["export:net"]


def test_targets_built_meanwhile_by_another_run_are_not_counted(doit: Doit) -> None:
    doit.build_all()
    doit.fresh.discard("bench:net:ort")
    doit.actions["bench:net:ort"] = lambda: passed(waited=True, seconds=99.0)
    code, out = doit()
    assert code == 0
    assert "fresh        bench:net:ort  built by another run meanwhile\n" in out
    assert "99" not in out
    assert out.endswith(f"everything is up to date ({len(doit.session.actions)} targets)\n")


def test_always_forces_what_is_fresh(doit: Doit) -> None:
    doit.build_all()
    code, out = doit("-a", "-s", "export:net")
    assert code == 0
    assert doit.executor.forced == ["export:net"]
    assert "asked for" in out


def test_list_shows_stages_and_models_and_all_targets_with_their_status(doit: Doit) -> None:
    code, out = doit("list")
    assert code == 0
    assert "build:net" in out
    assert "engine:net:ort" not in out
    doit.build_all()
    doit.fresh.discard("bench:net:ort")
    _, out = doit("list", "--all", "--status")
    status = {line.split()[1]: line[0] for line in out.splitlines()}
    assert status.keys() >= doit.session.actions.keys()
    stale = {"bench:net:ort", "bench:net", "bench", "build:net", "build"}
    assert {name for name, letter in status.items() if letter == "R"} == stale


@pytest.mark.parametrize("options", [(), ("--sort", "definition"), ("--deps",), ("-q",)])
def test_list_shows_the_same_groups_with_and_without_targets(
    doit: Doit, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    doit.models = ("b", "a")
    made: list[str] = []
    init = SessionTask.__init__

    def counted(task: SessionTask, name: str, *fields: Any, **more: Any) -> None:
        made.append(name)
        init(task, name, *fields, **more)

    monkeypatch.setattr(SessionTask, "__init__", counted)
    code, out = doit("list", *options)
    assert code == 0
    assert not set(made) & doit.session.actions.keys()
    with monkeypatch.context() as patch:
        patch.setattr(List, "execute", DoitCommand.execute)  # a task for every target
        assert doit("list", *options) == (0, out)
    assert made[-1] in doit.session.actions


def test_info_shows_why_a_target_is_stale(doit: Doit) -> None:
    doit.reasons["export:net"] = "export.opset: 17 → 18"
    code, out = doit("info", "export:net")
    assert code == 1
    assert "export:net: export.opset: 17 → 18" in out
    assert "build/net/export/model.onnx" in out
    assert "model.onnx.data" not in out, "a file that is not always written is no target to doit"


@pytest.mark.parametrize(
    ("arguments", "forgotten"),
    [
        (("forget", "export:net"), {"export:net"}),
        (("forget", "engine:net"), {"engine:net:ort", "engine:net:rtx"}),
        (("forget", "build:net"), None),
        (("forget",), None),
        (("forget", "--all"), None),
        (("clean", "--forget", "simplify:net"), {"simplify:net"}),
        (("clean", "simplify:net"), set()),
        (("list", "--all", "--status"), set()),
    ],
)
def test_forgetting_reaches_our_records(
    doit: Doit, arguments: tuple[str, ...], forgotten: set[str] | None
) -> None:
    code, _ = doit(*arguments)
    assert code == 0
    assert set(doit.executor.forgotten) == (
        doit.session.actions.keys() if forgotten is None else forgotten
    )


@pytest.mark.parametrize("arguments", [("forget", "export:net"), ("forget", "--all")])
def test_forgetting_with_a_locked_build_state_is_one_sentence(
    doit: Doit, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    def locked(executor: ScriptedExecutor, target: str) -> None:
        raise StageError("cannot use the build state x: database is locked", "try again")

    monkeypatch.setattr(ScriptedExecutor, "forget", locked)
    code, out = doit(*arguments)
    assert code == 2
    assert "ERROR: cannot use the build state x: database is locked; try again" in out
    assert "Traceback" not in out


def test_a_failure_forgets_nothing(doit: Doit) -> None:
    doit.actions["export:net"] = fail(WorkerDied("export:net was killed"))
    doit("--continue")
    assert doit.executor.forgotten == []


def test_clean_lists_what_it_removes_and_a_dry_run_removes_nothing(doit: Doit) -> None:
    doit.build_all()
    files = {path for path in (doit.root / "build").rglob("*") if path.is_file()}
    _, out = doit("clean", "--dry-run")
    assert out.count(" - removing ") == len(files)
    assert all(path.exists() for path in files)
    _, out = doit("clean", "export:net")
    assert "export:net - removing build/net/export/model.onnx\n" in out
    assert not (doit.root / "build/net/export").exists()
    assert (doit.root / "build/net/simplify/model.onnx").exists()
    doit("clean", "build:net")
    assert not (doit.root / "build/net").exists()


def test_clean_with_dependencies(doit: Doit) -> None:
    doit.build_all()
    doit("clean", "-c", "simplify:net")
    left = {path.name for path in (doit.root / "build/net").iterdir()}
    assert not left & {"export", "simplify"}
    assert left >= {"validate", "report"}


def test_ignored_targets_and_those_downstream_do_not_run(doit: Doit) -> None:
    doit("ignore", "bench")
    code, out = doit()
    assert code == 0
    assert not any(target.startswith(("bench", "report")) for target in doit.session.finished)
    assert "3 ignored" in out


def test_a_damaged_database_of_doit_is_renamed_with_one_line(doit: Doit) -> None:
    (doit.root / ".buildsys").mkdir()
    (doit.root / ".buildsys/doit.db").write_text("no database")
    code, out = doit("export:net")
    assert code == 0
    (line,) = [one for one in out.splitlines() if one.startswith("buildsys: warning: doit's data")]
    assert "is not readable (file is not a database); renamed to doit.db.broken-" in line
    assert "warning" not in doit("export:net")[1]


def test_two_runs_do_not_lock_each_other_out_of_doits_database(doit: Doit) -> None:
    """A failure in the first must not hold the sqlite file while the second runs."""
    inner: list[int] = []
    outer = doit

    def second() -> Any:
        session, _ = make_session(outer.root)
        config, create_tasks = doit_config(session)
        namespace = {"DOIT_CONFIG": {**config, "reporter": "zero"}, "task_targets": create_tasks}
        inner.append(DoitMain(ModuleTaskLoader(namespace)).run(["export:net"]))
        return passed()

    doit.actions.update({"export:net": fail(StageError("no")), "reference:net": second})
    assert doit("--continue", "export:net", "reference:net")[0] == 2
    assert inner == [0]


def test_on_a_terminal_finished_targets_stay_and_the_rest_is_redrawn(
    doit: Doit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    controller, terminal = pty.openpty()
    session, executor = make_session(doit.root)
    session.project.state.mkdir()
    executor.actions["verify:net:ort"] = fail(CheckFailed("output y is off"))
    config, create_tasks = doit_config(session)
    with os.fdopen(terminal, "w", encoding="utf-8") as out:
        reporter = config["reporter"](out, {})
        namespace = {"DOIT_CONFIG": {**config, "reporter": reporter}, "task_targets": create_tasks}
        read: list[bytes] = []
        reader = threading.Thread(target=_read_all, args=(controller, read))
        reader.start()
        assert DoitMain(ModuleTaskLoader(namespace)).run([]) == 1
    reader.join()
    os.close(controller)
    text = b"".join(read).decode()
    assert "✓" in text
    assert "✗" in text
    assert text.count("output y is off") == 1
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is shown again"


def _read_all(handle: int, into: list[bytes]) -> None:
    while True:
        try:
            into.append(os.read(handle, 65536))
        except OSError:  # the other end is closed
            return
