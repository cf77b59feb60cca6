import os
import signal

import pytest

from buildsys.system.processes import Process, describe_exit, run_python


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (-signal.SIGKILL, "was killed by signal 9 (SIGKILL), probably because memory ran out"),
        (-signal.SIGSEGV, "crashed with a segmentation fault (SIGSEGV)"),
        (-signal.SIGABRT, "aborted (SIGABRT)"),
        (-signal.SIGTERM, "was killed by signal 15 (SIGTERM)"),
        (-50, "was killed by signal 50"),
        (3, "exited with code 3 without a result"),
        (0, "exited with code 0 without a result"),
        (None, "stopped responding"),
    ],
)
def test_exit_causes(code: int | None, sentence: str) -> None:
    assert describe_exit(code) == sentence


def test_the_start_time_identifies_a_process() -> None:
    assert Process.of(os.getpid()).is_running
    assert not Process(os.getpid(), 1).is_running
    assert not Process.of(0).is_running
    assert Process(os.getpid(), 1).wait(0)
    assert not Process.of(os.getpid()).wait(0)
    Process(os.getpid(), 1).send_signal(signal.SIGKILL)  # signals nobody


def test_a_child_receives_its_request_and_returns_json() -> None:
    code = "import buildsys, json, sys; print(json.dumps(json.load(sys.stdin)))"
    result = run_python(("-c", code), {"question": ["a", 1]})
    assert (result.code, result.problem) == (0, "")
    assert result.json() == {"question": ["a", 1]}


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import sys; sys.exit('first\\nlast line\\n')", "last line"),
        ("raise SystemExit(3)", "exited with code 3 without a result"),
        ("import os; os.abort()", "aborted (SIGABRT)"),
    ],
)
def test_a_failed_child_has_a_problem(code: str, problem: str) -> None:
    assert run_python(("-c", code)).problem == problem


def test_a_child_is_killed_at_its_limit() -> None:
    result = run_python(("-c", "import time; time.sleep(600)"), limit_s=0.2)
    assert (result.code, result.problem) == (None, "stopped responding")
