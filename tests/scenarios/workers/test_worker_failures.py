"""Worker servers killed, hanging or not starting."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pool_project import PoolProject, import_from, orchestrator, parent_of, wait_for_end
from project_folder import TIMEOUT_S, wait_until

from buildsys.errors import WorkerDied
from buildsys.workers import pool as pools
from buildsys.workers.job import ServerKind


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_servers: Path
) -> Iterator[PoolProject]:
    """A project with servers that would outlive its run."""
    import_from(monkeypatch)
    project = PoolProject(tmp_path)
    yield project
    project.pool.close()


def use_kind(monkeypatch: pytest.MonkeyPatch, name: str, *preload: str) -> None:
    monkeypatch.setattr(pools, "server_kind_of", lambda _: ServerKind(name, preload))


def use_slow_library(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, time\nprint(f'loading in {os.getpid()}', flush=True)\ntime.sleep(600)\n"
    (project / "slow_library.py").write_text(program)
    import_from(monkeypatch, project)


def test_a_child_has_none_of_its_server_s_descriptors(project: PoolProject) -> None:
    file = project.root / "go"
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(project.run, "wait_for_file", file=str(file))
        wait_until(lambda: len(project.events) == 2, "the other job did not start")
        descriptors = project.run("list_descriptors").figures["descriptors"]
        file.touch()
        other.result()
    log = str(project.log("list_descriptors"))
    # the last one belongs to the recorder of reads, the socket is its channel
    own = ["/dev/null", log, log, "/memfd:reads (deleted)"]
    assert [name for name in descriptors if not name.startswith("socket:")] == own
    assert len(descriptors) == 5


def test_an_exception_in_the_event_handler_stops_the_job(project: PoolProject) -> None:
    pids: list[int] = []

    def interrupt(event: dict[str, Any]) -> None:
        pids.append(event["pid"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        project.run("hang", on_event=interrupt)
    wait_for_end(pids[0])
    assert project.run("echo").status == "passed"


def test_a_killed_server_fails_its_jobs_and_is_replaced(project: PoolProject) -> None:
    server = project.server_pid()
    project.events.clear()
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(project.error, "start_grandchild_and_hang")
        wait_until(lambda: len(project.events) == 3, "the job did not start")
        os.kill(server, signal.SIGKILL)
        error = job.result()
    ran = "the worker server that ran export:start_grandchild_and_hang"
    assert str(error).startswith(f"{ran} was killed by signal 9 (SIGKILL)")
    assert str(error).endswith("; full log: build/start_grandchild_and_hang.log")
    wait_for_end(*(int(event.get("pid") or event["message"]) for event in project.events))
    assert project.server_pid() != server


def test_a_library_that_cannot_be_imported_is_named(
    project: PoolProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "broken_torch.py").write_text("raise ImportError('no libcudart.so')")
    import_from(monkeypatch, project.root)
    use_kind(monkeypatch, "broken", "broken_torch")
    error = project.error("import_broken_torch")
    assert error.problem.endswith("failed unexpectedly: ImportError: no libcudart.so")
    assert error.hint.startswith("`buildsys doctor` names the next step; full log: build/import_")
    log = (project.root / ".buildsys/workers/broken.log").read_text()
    assert "cannot import broken_torch: ImportError: no libcudart.so" in log


def test_a_library_that_crashes_the_server_is_reported(
    project: PoolProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "crashing.py").write_text("import ctypes\nctypes.string_at(0)")
    import_from(monkeypatch, project.root)
    use_kind(monkeypatch, "broken", "crashing")
    error = project.error("echo")
    assert isinstance(error, WorkerDied)
    assert "crashed with a segmentation fault (SIGSEGV) before it started the job" in str(error)
    assert "importing crashing" in (project.root / ".buildsys/workers/broken.log").read_text()


def test_a_server_that_never_gets_ready_is_given_up(
    project: PoolProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_slow_library(project.root, monkeypatch)
    use_kind(monkeypatch, "slow", "slow_library")
    monkeypatch.setattr(pools, "_START_LIMIT_S", 0.2)
    monkeypatch.setattr(pools, "_CLOSE_LIMIT_S", 0.1)
    assert str(project.error("echo")).startswith(
        "the worker server for export:echo stopped responding before it started the job"
    )


def test_a_hanging_server_does_not_hang_its_jobs(
    project: PoolProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = project.server_pid()
    # the server would end the job after a minute; the client waits for that for 0.2 s in total
    monkeypatch.setattr(pools, "_LIMIT_SLACK_S", -59.8)
    monkeypatch.setattr(pools, "_CLOSE_LIMIT_S", 0.1)

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            os.kill(server, signal.SIGSTOP)

    error = project.error("hang", timeout_s=60, on_event=stop)
    problem = "the worker server that ran export:hang stopped responding"
    assert str(error) == f"{problem}; full log: build/hang.log"
    assert project.server_pid() != server


def test_closing_fails_running_jobs(project: PoolProject) -> None:
    project.run("echo")
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(project.error, "hang")
        wait_until(
            lambda: any(event["event"] == "progress" for event in project.events),
            "the job did not start",
        )
        project.pool.close()
        error = job.result()
    problem = "export:hang was stopped because the run was ended"
    assert str(error) == f"{problem}; full log: build/hang.log"
    wait_for_end(int(project.events[-1]["message"]))
    assert "the run was ended" in str(project.error("echo"))


@pytest.mark.parametrize(
    ("number", "mode"),
    [(signal.SIGKILL, "main"), (signal.SIGTERM, "thread"), (signal.SIGINT, "thread")],
)
def test_nothing_outlives_the_orchestrator(
    tmp_path: Path, number: signal.Signals, mode: str
) -> None:
    with orchestrator(tmp_path, "start_grandchild_and_hang", mode) as process:
        assert process.stdout is not None
        started, grandchild, _ = (int(process.stdout.readline()) for _ in range(3))
        server = parent_of(started)
        if number == signal.SIGINT:  # a terminal sends it to the whole group, server included
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(TIMEOUT_S) == -number
        wait_for_end(started, grandchild, server)
        assert "Traceback" not in (tmp_path / ".buildsys/workers/bare.log").read_text()
