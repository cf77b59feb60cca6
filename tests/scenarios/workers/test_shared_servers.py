"""Shared servers: reused while their environment is the same."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pool_project import ROOT, STAGES, orchestrator, parent_of, wait_for_end
from project_folder import TIMEOUT_S, ProjectFolder, wait_until

from buildsys.errors import StageError
from buildsys.system.processes import Process
from buildsys.workers import pool as pools
from buildsys.workers import registry
from buildsys.workers.job import Job
from buildsys.workers.pool import WorkerPool


@pytest.fixture(scope="module")
def plain_path() -> list[str]:
    """The module path of a process, unchanged by pytest and other tests."""
    program = "import json, sys; print(json.dumps(sys.path[1:]))"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    found: list[str] = json.loads(ran.stdout)
    return found


@pytest.fixture(autouse=True)
def folder(shared_servers: Path, plain_path: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(sys, "path", plain_path)
    return shared_servers


def run(project: Path, do: str = "echo", **options: Any) -> dict[str, Any]:
    """Run a job in a separate run; return its figures."""
    with WorkerPool(project / ".buildsys") as pool:
        return run_in(pool, project, do, **options)


def run_in(pool: WorkerPool, project: Path, do: str = "echo", **options: Any) -> dict[str, Any]:
    job = Job(
        f"x:{do}",
        STAGES,
        "m",
        "",
        {"do": do, **options},
        {},
        {"result": project / f"{do}.json"},
        project,
    )
    return pool.run(job, log=project / f"{do}.log", timeout_s=60).figures


def server_of(project: Path) -> int:
    server: int = run(project)["parent"]
    return server


def running() -> dict[int, registry.RunningServer]:
    return {server.record.pid: server for server in registry.list_servers(os.environ)}


def lives(pid: int) -> bool:
    return Process.of(pid).is_running


def test_the_next_run_reuses_the_server(tmp_path: Path) -> None:
    assert server_of(tmp_path) == server_of(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    assert server_of(other) != server_of(tmp_path)


def test_a_later_run_gets_its_own_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_of(tmp_path)
    for value in ("one", "two"):
        monkeypatch.setenv("BUILDSYS_MARK", value)
        monkeypatch.setenv("TERM", value)
        figures = run(tmp_path, "show_environment")
        assert figures["cwd"] == str(tmp_path)
        assert (figures["BUILDSYS_MARK"], figures["TERM"]) == (value, value)
    monkeypatch.delenv("TERM")
    assert run(tmp_path, "show_environment")["TERM"] is None
    assert len(running()) == 1


def test_two_runs_share_a_server_undisturbed(tmp_path: Path) -> None:
    with (
        orchestrator(tmp_path, "start_grandchild_and_hang") as one,
        WorkerPool(tmp_path / ".buildsys") as other,
    ):
        assert one.stdout is not None
        child, grandchild = int(one.stdout.readline()), int(one.stdout.readline())
        server = run_in(other, tmp_path)["parent"]
        assert parent_of(child) == server
        with ThreadPoolExecutor(1) as threads:
            go = tmp_path / "go"
            steady = threads.submit(run_in, other, tmp_path, "wait_for_file", file=str(go))
            one.kill()
            wait_for_end(child)
            wait_for_end(grandchild)
            assert not steady.done()
            go.touch()
            assert steady.result()["pid"]
    assert lives(server)


def test_a_job_ends_with_its_orchestrator_and_the_server_stays(tmp_path: Path) -> None:
    with orchestrator(tmp_path, "hang") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        os.killpg(process.pid, signal.SIGINT)
        process.wait(TIMEOUT_S)
        wait_for_end(child)
    (server,) = running()
    assert server_of(tmp_path) == server


def test_many_runs_at_once_start_one_server(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(orchestrator(tmp_path, "echo")) for _ in range(4)]
        answers = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    assert [err for _, err in answers] == [""] * 4
    assert {int(out.split()[-1]) for out, _ in answers} == set(running())
    assert len(running()) == 1


def test_a_killed_server_is_replaced_and_leaves_nothing(tmp_path: Path, folder: Path) -> None:
    first = server_of(tmp_path)
    os.kill(first, signal.SIGKILL)
    wait_for_end(first)
    second = server_of(tmp_path)
    assert second != first
    assert len(list(folder.glob("*.sock"))) == len(list(folder.glob("*.json"))) == 1


def test_a_hanging_server_is_killed_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_START_LIMIT_S", 4.0)
    monkeypatch.setattr(pools, "_CLOSE_LIMIT_S", 0.1)
    first = server_of(tmp_path)
    os.kill(first, signal.SIGSTOP)
    with WorkerPool(tmp_path / ".buildsys") as pool, ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(run_in, pool, tmp_path) for _ in range(2)]
        assert first not in {job.result(timeout=TIMEOUT_S)["parent"] for job in jobs}
    wait_for_end(first)


def test_an_idle_server_ends(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.IDLE_VARIABLE, "0.2s")
    with WorkerPool(tmp_path / ".buildsys") as pool:
        server = run_in(pool, tmp_path)["parent"]
        time.sleep(0.3)
        assert lives(server)  # the run that it serves may need it again
        assert run_in(pool, tmp_path)["parent"] == server
        closed = time.monotonic()
    wait_for_end(server)
    assert time.monotonic() - closed >= 0.2
    assert [path.name for path in folder.iterdir()] == ["lock"]


def test_a_folder_open_to_others_is_refused(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 54321)  # so that /tmp/buildsys-UID is another's
        with pytest.raises(StageError, match="cannot start workers: /tmp/buildsys-54321/workers"):
            server_of(tmp_path)
    folder.chmod(0o700)


def test_doit_lists_and_stops_the_servers(project: ProjectFolder, folder: Path) -> None:
    project.environment |= {"XDG_RUNTIME_DIR": str(folder.parent), "BUILDSYS_WORKER_IDLE": "60"}
    assert project.buildsys("cache", "workers").out == "no worker servers\n"
    server = server_of(project.root)

    def workers() -> str:
        return project.buildsys("cache", "workers").out

    wait_until(lambda: " working " not in workers(), "the first job's process has not ended")
    head, row = workers().splitlines()
    assert head.split() == ["pid", "kind", "state", "python", "project"]
    assert row.split()[:3] == [str(server), "bare", "idle"]
    assert row.split()[-2:] == [sys.executable, str(project.root)]
    _, row = project.buildsys("cache", "workers", "--stop").out.splitlines()
    assert row.split()[:3] == [str(server), "bare", "ended"]
    assert not lives(server)
    assert project.buildsys("cache", "workers", "--stop", "--all").out == "no worker servers\n"
    assert project.buildsys("cache", "workers", "now").code == 3


def test_stopping_lets_running_jobs_finish(
    tmp_path: Path, project: ProjectFolder, folder: Path
) -> None:
    project.environment |= {"XDG_RUNTIME_DIR": str(folder.parent), "BUILDSYS_WORKER_IDLE": "60"}
    other, go = tmp_path / "other", tmp_path / "go"
    other.mkdir()
    idle = server_of(other)
    with WorkerPool(tmp_path / ".buildsys") as pool, ThreadPoolExecutor(1) as threads:
        busy = run_in(pool, tmp_path)["parent"]
        job = threads.submit(run_in, pool, tmp_path, "wait_for_file", file=str(go))
        wait_until(lambda: running()[busy].state == "working", "the job did not start")
        stop = ("cache", "workers", "--stop")
        assert project.buildsys(*stop).out == "no worker servers of this project\n"
        assert lives(idle)
        rows = project.buildsys(*stop, "--all").out.splitlines()[1:]
        states = {int(row.split()[0]): row for row in rows}
        assert " ended " in states[idle]
        assert " ends after its run " in states[busy]
        assert not lives(idle)
        go.touch()
        job.result(timeout=TIMEOUT_S)
        assert run_in(pool, tmp_path)["parent"] == busy  # the next job of the same run
    wait_for_end(busy)


def test_stopping_now_ends_running_jobs(
    tmp_path: Path, project: ProjectFolder, folder: Path
) -> None:
    project.environment |= {"XDG_RUNTIME_DIR": str(folder.parent), "BUILDSYS_WORKER_IDLE": "60"}
    with orchestrator(tmp_path, "hang") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        server = parent_of(child)
        _, row = project.buildsys("cache", "workers", "--now", "--all").out.splitlines()
        assert row.split()[:3] == [str(server), "bare", "ended"]
        wait_for_end(child)
        assert not lives(server)
