"""Real worker processes, really killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from buildsys.errors import CheckFailed, StageError, Unavailable, WorkerDied
from buildsys.workers.client import job_channels
from buildsys.workers.client import pool as pool_module
from buildsys.workers.client import server_handle as handle_module
from buildsys.workers.client.pool import JobReply, WorkerPool
from buildsys.workers.job import Job
from buildsys.workers.server_kinds import ServerKind

ROOT = Path(__file__).resolve().parents[3]
STAGES = "tests.scenarios.worker_stages"
SLOW = ServerKind("slow", ("slow_library",))


class Bench:
    """A pool with a project folder of its own."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.pool = WorkerPool(project / ".buildsys")
        self.events: list[dict[str, Any]] = []

    def job(self, do: str, **options: Any) -> Job:
        result = self.project / f"{do}.json"
        return Job(
            f"export:{do}",
            STAGES,
            "m",
            "v",
            {"do": do, **options},
            {},
            {"result": result},
            self.project,
        )

    def log(self, do: str) -> Path:
        return self.project / "build" / f"{do}.log"

    def run(
        self,
        do: str,
        timeout_s: float | None = 60,
        on_event: Callable[..., None] | None = None,
        **o: Any,
    ) -> JobReply:
        return self.pool.run(
            self.job(do, **o),
            log=self.log(do),
            timeout_s=timeout_s,
            on_event=on_event or self.events.append,
        )

    def error(self, do: str, **options: Any) -> StageError:
        with pytest.raises(StageError) as caught:
            self.run(do, **options)
        return caught.value

    def server_pid(self) -> int:
        """Return the pid of the one server, from what its child knows of its parent."""
        return self.run("echo").figures["parent"]


@pytest.fixture(params=["own", "lasting"])
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Bench]:
    """The bench with a server of the run, and with one that would outlive it: no difference may be seen."""
    if request.param == "lasting":
        request.getfixturevalue("lasting_servers")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    bench = Bench(tmp_path)
    yield bench
    bench.pool.close()


def test_a_job_is_answered(bench: Bench) -> None:
    reply = bench.run("echo", deep={"list": [1, None]})
    assert (reply.status, reply.reason, reply.hint) == ("passed", "", "")
    assert reply.figures["options"] == {"do": "echo", "deep": {"list": [1, None]}}
    assert reply.figures["cwd"] == str(bench.project)
    assert reply.log == bench.log("echo")
    content = json.loads((bench.project / "echo.json").read_text())
    assert content["schema"] == "buildsys/result/1"
    assert content["target"] == "export:echo"
    assert content["seconds"] == reply.seconds
    assert content["options"] == reply.figures["options"]


def test_events_come_in_order(bench: Bench) -> None:
    reply = bench.run("report_progress")
    assert [event["event"] for event in bench.events] == [
        "started",
        "progress",
        "progress",
        "finished",
    ]
    assert bench.events[0]["pid"] == reply.figures["pid"]
    assert [event["message"] for event in bench.events[1:3]] == ["first", "second"]
    assert bench.events[3]["status"] == "passed"


def test_large_answers_and_many_events_pass(bench: Bench) -> None:
    reply = bench.run("say_much")
    assert len(bench.events) == 2002
    assert reply.figures["text"] == "x" * 1_000_000


def test_raw_samples_are_in_the_file_and_not_in_the_answer(bench: Bench) -> None:
    reply = bench.run("say_much")
    assert set(reply.figures) == {"text"}
    assert json.loads((bench.project / "say_much.json").read_text())["samples"] == list(
        range(200_000)
    )


def test_a_failed_check_is_an_answer(bench: Bench) -> None:
    reply = bench.run("fail_check")
    assert (reply.status, reply.reason, reply.hint, reply.figures) == (
        "failed",
        "it is wrong",
        "look at it",
        {"worst": 3},
    )
    assert json.loads((bench.project / "fail_check.json").read_text())["status"] == "failed"


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
    bench: Bench, do: str, kind: type[StageError], sentence: str, status: str | None
) -> None:
    error = bench.error(do)
    assert type(error) is kind
    assert str(error) == sentence
    result = bench.project / f"{do}.json"
    assert (json.loads(result.read_text())["status"] if result.exists() else None) == status
    assert "Traceback" not in bench.log(do).read_text()


def test_an_unexpected_error_keeps_its_traceback_in_the_log(bench: Bench) -> None:
    error = bench.error("raise_unexpected")
    assert type(error) is StageError
    assert (
        error.problem == "export:raise_unexpected failed unexpectedly: ValueError: first line of it"
    )
    assert error.hint == "full log: build/raise_unexpected.log"
    log = bench.log("raise_unexpected").read_text()
    assert "KeyError: 'missing'" in log
    assert "ValueError: first line of it\nsecond line" in log
    assert not (bench.project / "raise_unexpected.json").exists()


@pytest.mark.parametrize("do", ["return_nonsense", "give_unwritable_figures"])
def test_a_stage_that_answers_nonsense_fails(bench: Bench, do: str) -> None:
    assert f"export:{do} failed unexpectedly: TypeError: " in str(bench.error(do))
    assert not (bench.project / f"{do}.json").exists()


@pytest.mark.parametrize(
    ("do", "end"),
    [
        (
            "kill_itself",
            "was killed by signal 9 (SIGKILL), probably because memory ran out",
        ),
        ("crash", "crashed with a segmentation fault (SIGSEGV)"),
        ("abort", "aborted (SIGABRT)"),
        ("sys_exit", "exited with code 3 without a result"),
        ("leave_silently", "exited with code 0 without a result"),
        (
            "fork_grandchild_and_die",
            "was killed by signal 9 (SIGKILL), probably because memory ran out",
        ),
    ],
)
def test_a_death_fails_its_job_alone_in_one_sentence(bench: Bench, do: str, end: str) -> None:
    error = bench.error(do)
    assert type(error) is WorkerDied
    assert str(error) == f"the worker of export:{do} {end}; full log: build/{do}.log"
    assert bench.log(do).read_text().endswith(f"# the worker of export:{do} {end}\n")
    assert bench.run("echo").status == "passed"


def test_a_segmentation_fault_leaves_its_stack_in_the_log(bench: Bench) -> None:
    bench.error("printf_and_crash")
    log = bench.log("printf_and_crash").read_text()
    assert "last words" in log
    assert "Segmentation fault" in log
    assert "in printf_and_crash" in log


@pytest.mark.parametrize("do", ["fill_memory", "claim_no_memory"])
def test_running_out_of_memory_is_said_plainly(bench: Bench, do: str) -> None:
    error = bench.error(do)
    assert str(error).startswith(f"export:{do} ran out of memory (")
    assert str(error).endswith(f"; full log: build/{do}.log")


def test_peak_memory_is_the_job_s_own(bench: Bench) -> None:
    before, hungry, after = (
        bench.run(do).peak_rss_mib for do in ("report_progress", "hold_memory", "report_progress")
    )
    assert hungry > before + 60
    assert after < before + 10


def test_all_output_goes_to_the_log(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.run("print_everywhere")
    lines = bench.log("print_everywhere").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# export:print_everywhere, 20")
    assert lines[1:] == [
        "from Python, with ✅",
        "from C stdio",
        "from a bare descriptor",
        "from a subprocess",
    ]
    assert capfd.readouterr() == ("", "")


def test_a_log_tells_of_the_last_run_only(bench: Bench) -> None:
    for _ in range(2):
        bench.run("print_everywhere")
    assert bench.log("print_everywhere").read_text().count("from C stdio") == 1


def test_a_log_that_cannot_be_opened_fails_the_job(bench: Bench) -> None:
    bench.log("echo").mkdir(parents=True)
    assert "cannot start export:echo: Is a directory" in str(bench.error("echo"))


@pytest.mark.parametrize(("do", "at_most_s"), [("hang", 1.5), ("hang_deaf", 5)])
def test_a_limit_of_time_is_kept(bench: Bench, do: str, at_most_s: float) -> None:
    bench.run("echo")
    began = time.monotonic()
    error = bench.error(do, timeout_s=0.3)
    assert 0.3 <= time.monotonic() - began < at_most_s
    assert (
        str(error)
        == f"export:{do} exceeded its limit of 0.3 s and was stopped; full log: build/{do}.log"
    )
    assert _ends(bench.events[-2]["pid"])


def test_what_a_stage_started_ends_with_it(bench: Bench) -> None:
    assert _ends(bench.run("start_grandchild").figures["grandchild"])
    bench.error("start_grandchild_and_hang", timeout_s=0.5)
    grandchild = next(event["message"] for event in bench.events if event["event"] == "progress")
    assert _ends(int(grandchild))


def test_a_child_holds_none_of_its_server_s_descriptors(bench: Bench) -> None:
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(bench.run, "sleep", seconds=1)
        descriptors = bench.run("list_descriptors").figures["descriptors"]
        other.result()
    log = str(bench.log("list_descriptors"))
    assert [name for name in descriptors if not name.startswith("pipe:")] == ["/dev/null", log, log]
    assert len(descriptors) == 4


def test_two_threads_work_side_by_side(bench: Bench) -> None:
    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(lambda _: bench.run("sleep", seconds=0.5).figures, range(2))
    assert one["began"] < two["ended"]
    assert two["began"] < one["ended"]


def test_a_death_beside_does_not_disturb(bench: Bench) -> None:
    with ThreadPoolExecutor(3) as threads:
        steady = threads.submit(bench.run, "sleep", seconds=0.5)
        dying = [threads.submit(bench.error, do) for do in ("crash", "kill_itself", "abort")]
        assert all(isinstance(death.result(), WorkerDied) for death in dying)
        assert steady.result().status == "passed"


def test_fifty_jobs_in_a_row(bench: Bench) -> None:
    pids = {bench.run("report_progress").figures["pid"] for _ in range(50)}
    assert len(pids) == 50
    server = bench.server_pid()
    _wait_for(lambda: not _children(server))  # no zombie
    assert len(list(Path("/proc/self/fd").iterdir())) < 64


def test_many_threads_never_hang(bench: Bench) -> None:
    behaviours = ["report_progress", "crash", "raise_unexpected", "kill_itself", "echo"] * 8
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda do: _outcome(bench, do), behaviours))
    assert outcomes == ["JobReply", "WorkerDied", "StageError", "WorkerDied", "JobReply"] * 8


def test_an_exception_in_the_listener_stops_the_job(bench: Bench) -> None:
    pids: list[int] = []

    def interrupt(event: dict[str, Any]) -> None:
        pids.append(event["pid"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run("hang", on_event=interrupt)
    assert _ends(pids[0])
    assert bench.run("echo").status == "passed"


def test_a_killed_server_fails_its_jobs_and_is_replaced(bench: Bench) -> None:
    server = bench.server_pid()
    bench.events.clear()
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(bench.error, "start_grandchild_and_hang")
        _wait_for(lambda: len(bench.events) == 3)
        os.kill(server, signal.SIGKILL)
        error = job.result(timeout=10)
    assert str(error).startswith(
        "the worker server that ran export:start_grandchild_and_hang was killed by signal 9 (SIGKILL)"
    )
    assert str(error).endswith("; full log: build/start_grandchild_and_hang.log")
    assert all(_ends(int(event.get("pid") or event["message"])) for event in bench.events)
    assert bench.server_pid() != server


def test_an_idle_server_that_was_killed_is_replaced(bench: Bench) -> None:
    server = bench.server_pid()
    os.kill(server, signal.SIGKILL)
    _wait_for(lambda: _state(server) in ("Z", ""))
    assert bench.server_pid() != server


def test_a_library_that_does_not_load_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.project / "broken_torch.py").write_text(
        "raise ImportError('libcudart.so: cannot open shared object file')"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(bench.project))))
    monkeypatch.setattr(
        pool_module, "server_kind_of", lambda _: ServerKind("broken", ("broken_torch",))
    )
    expected = "cannot import broken_torch: ImportError: libcudart.so: cannot open shared object file; full log: "
    for _ in range(2):
        assert str(bench.error("echo")) == expected + ".buildsys/workers/broken.log"
    assert "Traceback" in (bench.project / ".buildsys/workers/broken.log").read_text()


def test_a_missing_optional_library_is_no_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        pool_module,
        "server_kind_of",
        lambda _: ServerKind("some", ("json", "no_such_library", "wave")),
    )
    assert bench.run("echo").status == "passed"
    log = (bench.project / ".buildsys/workers/some.log").read_text()
    assert "no_such_library is not installed" in log
    assert "Traceback" not in log
    assert "importing wave" in log


def test_a_library_that_crashes_the_server_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.project / "crashing.py").write_text("import ctypes\nctypes.string_at(0)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(bench.project))))
    monkeypatch.setattr(
        pool_module, "server_kind_of", lambda _: ServerKind("broken", ("crashing",))
    )
    error = bench.error("echo")
    assert isinstance(error, WorkerDied)
    assert "crashed with a segmentation fault (SIGSEGV) before it started the job" in str(error)
    assert "importing crashing" in (bench.project / ".buildsys/workers/broken.log").read_text()


def test_a_server_that_never_gets_ready_is_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_slow_library(bench.project, monkeypatch)
    monkeypatch.setattr(pool_module, "server_kind_of", lambda _: SLOW)
    monkeypatch.setattr(handle_module, "_START_LIMIT_S", 0.3)
    assert str(bench.error("echo")).startswith(
        "the worker server for export:echo stopped responding before it started the job"
    )


def test_a_server_that_hangs_does_not_hang_its_jobs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = bench.server_pid()
    monkeypatch.setattr(job_channels, "_LIMIT_SLACK_S", 0.3)
    stop = lambda event: os.kill(server, signal.SIGSTOP) if event["event"] == "started" else None  # noqa: E731
    error = bench.error("hang", timeout_s=0.3, on_event=stop)
    assert (
        str(error)
        == "the worker server that ran export:hang stopped responding; full log: build/hang.log"
    )
    assert bench.server_pid() != server


def test_a_server_that_hangs_does_not_hide_the_end_of_its_child(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = bench.server_pid()
    monkeypatch.setattr(job_channels, "_LIMIT_SLACK_S", 0.3)

    def stop_and_kill(event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            os.kill(server, signal.SIGSTOP)
            os.kill(int(event["message"]), signal.SIGKILL)

    error = bench.error("hang", timeout_s=None, on_event=stop_and_kill)
    assert (
        str(error)
        == "the worker server that ran export:hang stopped responding; full log: build/hang.log"
    )


def test_a_collection_in_a_child_leaves_shared_memory_alone(bench: Bench) -> None:
    collector = bench.run("describe_collector").figures
    assert collector["enabled"]
    assert collector["frozen"] > 1000


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.pool = WorkerPool(tmp_path / ".buildsys", python="/no/such/python")
    assert str(bench.error("echo")) == (
        "cannot start a worker server with /no/such/python: No such file or directory: /no/such/python"
    )


def test_closing_fails_running_jobs_at_once(bench: Bench) -> None:
    bench.run("echo")
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(bench.error, "hang")
        _wait_for(lambda: any(event["event"] == "progress" for event in bench.events))
        began = time.monotonic()
        bench.pool.close()
        error = job.result(timeout=10)
    assert time.monotonic() - began < 2
    assert (
        str(error) == "export:hang was stopped because the run was ended; full log: build/hang.log"
    )
    assert _ends(int(bench.events[-1]["message"]))
    assert "the run was ended" in str(bench.error("echo"))


ORCHESTRATOR = """
import sys, threading
from pathlib import Path
from buildsys.workers.job import Job
from buildsys.workers.client import pool as pool_module
from buildsys.workers.client.pool import WorkerPool
from buildsys.workers.server_kinds import ServerKind

if sys.argv[3] == "slow":
    pool_module.server_kind_of = lambda _: ServerKind("slow", ("slow_library",))
project = Path(sys.argv[1])
pool = WorkerPool(project / ".buildsys")
options, outputs = {"do": sys.argv[2]}, {"result": project / "result.json"}
job = Job("export:m", "tests.scenarios.worker_stages", "m", "", options, {}, outputs, project)

def say(event):
    print(event.get("pid") or event["message"], flush=True)

def work():
    pool.run(job, log=project / "log", on_event=say)

if sys.argv[3] == "thread":  # as under `doit -n`: the thread that starts the server is not the main one
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
else:
    work()
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name
)
@pytest.mark.parametrize("mode", ["main", "thread"])
def test_nothing_outlives_the_orchestrator(
    tmp_path: Path, number: signal.Signals, mode: str
) -> None:
    with _orchestrator(tmp_path, "start_grandchild_and_hang", mode) as orchestrator:
        assert orchestrator.stdout is not None
        started, grandchild, _ = (int(orchestrator.stdout.readline()) for _ in range(3))
        server = _parent_of(started)
        if (
            number == signal.SIGINT
        ):  # as a terminal sends it: to the whole group, so to the server as well
            os.killpg(orchestrator.pid, number)
        else:
            orchestrator.send_signal(number)
        assert orchestrator.wait(10) == -number or number == signal.SIGINT
        assert all(_ends(pid) for pid in (started, grandchild, server))
        assert "Traceback" not in (tmp_path / ".buildsys/workers/bare.log").read_text()


def test_a_server_that_is_still_loading_ends_with_its_orchestrator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_slow_library(tmp_path, monkeypatch)
    with _orchestrator(tmp_path, "echo", "slow") as orchestrator:
        log = tmp_path / ".buildsys/workers/slow.log"
        _wait_for(lambda: log.exists() and "loading in" in log.read_text())
        orchestrator.kill()
        assert _ends(int(log.read_text().rpartition("loading in ")[2]))


def test_a_server_survives_the_thread_that_started_it(bench: Bench) -> None:
    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.append(bench.server_pid()))
    thread.start()
    thread.join()
    time.sleep(0.2)  # the system tells the server that its starter is gone
    assert bench.server_pid() == pids[0]


@contextmanager
def _orchestrator(project: Path, do: str, mode: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", ORCHESTRATOR, str(project), do, mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(project)))},
        text=True,
        start_new_session=True,
    ) as orchestrator:
        try:
            yield orchestrator
        finally:
            orchestrator.kill()  # or a failed test would wait for it


def _use_slow_library(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, time\nprint(f'loading in {os.getpid()}', flush=True)\ntime.sleep(600)\n"
    (project / "slow_library.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(project))))


def _outcome(bench: Bench, do: str) -> str:
    try:
        return type(bench.run(do)).__name__
    except StageError as error:
        return type(error).__name__


def _state(pid: int) -> str:
    """Return the state letter of a process, "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _ends(pid: int) -> bool:
    _wait_for(lambda: _state(pid) in ("", "Z"))  # in a container nobody may reap what was orphaned
    return True


def _wait_for(condition: Callable[[], bool], limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
