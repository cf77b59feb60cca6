"""Jobs in real worker processes: results, errors, crashes, output. One shared server runs them."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pool_project import ROOT, PoolProject, wait_for_end

from buildsys.errors import CheckFailed, StageError, Unavailable, WorkerDied
from buildsys.workers import registry
from buildsys.workers.pool import WorkerPool


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    runtime = tempfile.mkdtemp(prefix="bs-")
    root = tmp_path_factory.mktemp("pool")
    with pytest.MonkeyPatch.context() as patch, WorkerPool(root / ".buildsys") as pool:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("XDG_RUNTIME_DIR", runtime)
        patch.setenv("BUILDSYS_WORKER_IDLE", "60")
        PoolProject(root, pool).run("echo")
        yield pool
        registry.stop_servers(os.environ)
    shutil.rmtree(runtime)


@pytest.fixture
def project(pool: WorkerPool, tmp_path: Path) -> PoolProject:
    return PoolProject(tmp_path, pool)


def test_a_job_returns_its_result(project: PoolProject) -> None:
    reply = project.run("echo", deep={"list": [1, None]})
    assert (reply.status, reply.reason, reply.hint) == ("passed", "", "")
    assert reply.figures["options"] == {"do": "echo", "deep": {"list": [1, None]}}
    assert reply.figures["cwd"] == str(project.root)
    content = json.loads((project.root / "echo.json").read_text())
    assert content["schema"] == "buildsys/result/1"
    assert content["target"] == "export:echo"
    assert content["seconds"] == reply.seconds
    assert content["options"] == reply.figures["options"]


def test_events_arrive_in_order(project: PoolProject) -> None:
    reply = project.run("report_progress")
    kinds = [event["event"] for event in project.events]
    assert kinds == ["started", "progress", "progress", "finished"]
    assert project.events[0]["pid"] == reply.figures["pid"]
    assert [event["message"] for event in project.events[1:3]] == ["first", "second"]
    assert project.events[3]["status"] == "passed"


def test_large_results_and_many_events_arrive(project: PoolProject) -> None:
    reply = project.run("say_much")
    assert len(project.events) == 2002
    assert reply.figures == {"text": "x" * 1_000_000}
    # raw samples are in the result file only
    content = json.loads((project.root / "say_much.json").read_text())
    assert content["samples"] == list(range(200_000))


def test_a_failed_check_is_a_result(project: PoolProject) -> None:
    reply = project.run("fail_check")
    found = (reply.status, reply.reason, reply.hint, reply.figures)
    assert found == ("failed", "it is wrong", "look at it", {"worst": 3})
    assert json.loads((project.root / "fail_check.json").read_text())["status"] == "failed"


@pytest.mark.parametrize(
    ("do", "kind", "sentence", "status"),
    [
        ("raise_stage_error", StageError, "no such operator; use another opset", None),
        ("fail_in_a_callback", StageError, "no such operator; use another opset", None),
        ("raise_check_failed", CheckFailed, "outputs differ; see the tensors", "failed"),
        ("raise_unavailable", Unavailable, "there is no GPU; run it elsewhere", "unavailable"),
    ],
)
def test_expected_errors_keep_their_class(
    project: PoolProject, do: str, kind: type[StageError], sentence: str, status: str | None
) -> None:
    error = project.error(do)
    assert type(error) is kind
    assert str(error) == sentence
    result = project.root / f"{do}.json"
    assert (json.loads(result.read_text())["status"] if result.exists() else None) == status
    assert "Traceback" not in project.log(do).read_text()


def test_the_log_has_the_traceback_of_an_unexpected_error(project: PoolProject) -> None:
    error = project.error("raise_unexpected")
    assert type(error) is StageError
    assert (
        error.problem == "export:raise_unexpected failed unexpectedly: ValueError: first line of it"
    )
    assert error.hint == "full log: build/raise_unexpected.log"
    log = project.log("raise_unexpected").read_text()
    assert "KeyError: 'missing'" in log
    assert "ValueError: first line of it\nsecond line" in log
    assert not (project.root / "raise_unexpected.json").exists()


@pytest.mark.parametrize("do", ["return_nonsense", "give_unwritable_figures"])
def test_an_invalid_result_fails_the_job(project: PoolProject, do: str) -> None:
    assert f"export:{do} failed unexpectedly: TypeError: " in str(project.error(do))
    assert not (project.root / f"{do}.json").exists()


@pytest.mark.parametrize(
    "do", ["raise_long_message", "raise_long_stage_error", "return_long_reason"]
)
def test_a_long_message_is_whole_only_in_the_log(project: PoolProject, do: str) -> None:
    if do == "return_long_reason":
        reply = project.run(do)
        problem, hint = reply.reason, reply.hint
        result = json.loads((project.root / f"{do}.json").read_text())
        assert (result["reason"], result["hint"]) == (problem, hint)
    else:
        error = project.error(do)
        problem, hint = error.problem, error.hint
    assert "first words" in problem
    assert "last words" in problem
    assert "characters left out, the log has all" in problem
    assert len(problem) < 2200
    assert len(hint) < 21_000
    assert "x" * 5_000_000 in project.log(do).read_text()


KILLED = "was killed by signal 9 (SIGKILL), probably because memory ran out"


@pytest.mark.parametrize(
    ("do", "ending"),
    [
        ("kill_itself", KILLED),
        (
            "crash",
            "crashed with a segmentation fault (SIGSEGV) in string_at() of ctypes/__init__.py",
        ),
        ("abort", "aborted (SIGABRT) in abort() of scenarios/worker_stages.py"),
        ("leave_silently", "exited with code 0 without a result"),
        ("fork_grandchild_and_die", KILLED),
    ],
)
def test_a_crash_fails_only_its_job(project: PoolProject, do: str, ending: str) -> None:
    error = project.error(do)
    assert type(error) is WorkerDied
    said = re.sub(r"(?<=\.py):\d+", "", str(error))
    assert said == f"the worker of export:{do} {ending}; full log: build/{do}.log"
    assert f"# {str(error).partition(';')[0]}\n" in project.log(do).read_text()
    assert project.run("echo").status == "passed"


@pytest.mark.parametrize("do", ["fill_memory", "claim_no_memory"])
def test_exhausted_memory_is_reported(project: PoolProject, do: str) -> None:
    error = project.error(do)
    assert str(error).startswith(f"export:{do} ran out of memory (")
    assert str(error).endswith(f"; full log: build/{do}.log")
    assert error.is_external


def test_the_log_has_all_output_of_the_last_run(
    project: PoolProject, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        project.run("print_everywhere")
        lines = project.log("print_everywhere").read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("# export:print_everywhere, 20")
        assert lines[1:] == [
            "from Python, with ✅",
            "from C stdio",
            "from a bare descriptor",
            "from a subprocess",
        ]
    assert capfd.readouterr() == ("", "")


def test_a_time_limit_stops_the_job(project: PoolProject) -> None:
    limit = "export:hang exceeded its limit of 0.3 s and was stopped"
    assert str(project.error("hang", timeout_s=0.3)) == f"{limit}; full log: build/hang.log"
    wait_for_end(*(event["pid"] for event in project.events if event["event"] == "started"))


def test_processes_of_a_stage_end_with_it(project: PoolProject) -> None:
    wait_for_end(project.run("start_grandchild").figures["grandchild"])
    progress: list[str] = []
    limit_s = 0.5
    while not progress:  # a slow machine needs more time up to that event
        project.error("start_grandchild_and_hang", timeout_s=limit_s)
        progress += [event["message"] for event in project.events if event["event"] == "progress"]
        limit_s *= 2
    wait_for_end(int(progress[0]))
