"""Jobs on a real cluster of Ray: a head and two nodes on this machine."""

from __future__ import annotations

import importlib.util
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed (pip install 'buildsys[ray]')", allow_module_level=True)

from cluster_jobs import connected, state_of, wait, wait_for
from ray_cluster import RayCluster

from buildsys.errors import TemporaryError
from buildsys.execution.executors.interface import (
    ENDED,
    LOST,
    QUEUED,
    RUNNING,
    JobState,
    RemoteJob,
)
from buildsys.execution.executors.ray import RayExecutor
from buildsys.plan.action import NO_NEEDS, Needs
from buildsys.system.processes import children_of


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    try:
        cluster.start_head()
        cluster.start_node("one", {"buildsys": 1, "trt86": 1})
        cluster.start_node("two", {"buildsys": 1, "trt10": 1})
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def executor(
    cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RayExecutor]:
    folder = tmp_path_factory.mktemp("project")
    executor = make(folder, address=cluster.address, env={"COLOUR": "red"})
    yield executor
    executor.close()


class LongJob:
    """A command that waits for ever, for the end of the greeting of its store, an FTP server."""

    def __init__(self, label: str) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        store = f"ftp://127.0.0.1:{self._server.getsockname()[1]}/store"
        arguments = ("run-action", "0" * 64, "--store", store)
        self.job = RemoteJob("long", arguments, Needs(labels=(label,)))
        self._client: socket.socket | None = None

    def has_started(self) -> bool:
        if select.select([self._server], [], [], 0)[0]:
            self._client = self._server.accept()[0]
            threading.Thread(target=self._greet, daemon=True).start()
        return self._client is not None

    def _greet(self) -> None:
        assert self._client is not None
        with suppress(OSError):  # the command has ended
            while True:
                self._client.sendall(b"220-wait\r\n")
                time.sleep(5)

    def has_ended(self) -> bool:
        assert self._client is not None
        if not select.select([self._client], [], [], 0)[0]:
            return False
        with suppress(ConnectionResetError):
            assert self._client.recv(1) == b""
        self._client.close()
        self._server.close()
        return True


def make(project: Path, **settings: Any) -> RayExecutor:
    return connected(RayExecutor, project, kind="ray", **settings)


def start(executor: RayExecutor, job: RemoteJob) -> str:
    handle = executor.submit(job)
    state = wait(executor, handle, RUNNING, ENDED, LOST)
    assert state.phase == RUNNING, (state, executor.log(handle))
    return handle


def test_commands_run_on_the_nodes(executor: RayExecutor) -> None:
    labels = ["trt86", "trt10", "trt86", "trt10"]
    jobs = [RemoteJob("v", ("--version",), Needs(labels=(label,))) for label in labels]
    handles = [executor.submit(job) for job in jobs]
    states = [wait(executor, handle) for handle in handles]
    assert states == [JobState(ENDED, 0, name) for name in ("one", "two", "one", "two")]
    assert all(executor.log(handle).startswith("buildsys ") for handle in handles)


def test_a_problem_has_its_exit_code_and_message(executor: RayExecutor) -> None:
    handle = executor.submit(RemoteJob("wrong", ("run-action", "abc"), NO_NEEDS))
    assert wait(executor, handle).exit_code == 3
    assert "takes the digest of one request" in executor.log(handle)


def test_a_cancelled_job_ends_with_its_processes(executor: RayExecutor) -> None:
    long = LongJob("trt86")
    handle = start(executor, long.job)
    wait_for(long.has_started)
    waiting = executor.submit(RemoteJob("alone", ("--version",), long.job.needs, exclusive=True))
    executor.cancel(waiting)
    assert wait(executor, waiting) == JobState(ENDED, 143)
    executor.cancel(handle)
    assert wait(executor, handle) == JobState(ENDED, 143, "one")
    wait_for(long.has_ended)
    executor.cancel(handle)  # stays as it is
    assert state_of(executor, handle).exit_code == 143


def test_a_need_of_no_node_is_named_and_given_up(cluster: RayCluster, tmp_path: Path) -> None:
    executor = make(tmp_path, address=cluster.address, wait_for_nodes=4.0)
    try:
        handle = executor.submit(RemoteJob("gpu", ("--version",), Needs(gpu="L4", gpu_count=1)))
        wait_for(lambda: state_of(executor, handle).reason)
        assert state_of(executor, handle) == JobState(QUEUED, reason="no node has 1 GPU")
        assert wait(executor, handle) == JobState(ENDED, 69)
        assert "no node has 1 GPU" in executor.log(handle)
    finally:
        executor.close()


def test_a_killed_driver_loses_its_jobs_and_the_next_one_starts_another(
    executor: RayExecutor,
) -> None:
    long = LongJob("trt86")
    handle = start(executor, long.job)
    wait_for(long.has_started)
    os.kill(executor._driver._process.pid, signal.SIGKILL)
    state = wait(executor, handle)
    assert (state.phase, state.machine) == (LOST, "one")
    assert state.reason.startswith("the connection to Ray was lost")
    wait_for(long.has_ended)
    again = executor.submit(RemoteJob("v", ("--version",), NO_NEEDS))
    assert wait(executor, again).exit_code == 0


def test_the_end_of_a_run_ends_its_jobs(cluster: RayCluster, tmp_path: Path) -> None:
    executor = make(tmp_path, address=cluster.address)
    long = LongJob("trt86")
    handle = start(executor, long.job)
    wait_for(long.has_started)
    executor.close()
    wait_for(long.has_ended)
    assert wait(executor, handle, LOST).phase == LOST
    with pytest.raises(TemporaryError, match="the run was ended"):
        executor.submit(long.job)


def test_jobs_of_a_killed_node_are_lost(cluster: RayCluster, executor: RayExecutor) -> None:
    long = LongJob("trt10")
    handle = start(executor, long.job)
    wait_for(long.has_started)
    cluster.kill_node("two")
    state = wait(executor, handle)
    assert state == JobState(LOST, machine="two", reason="the node two was lost")
    wait_for(long.has_ended)
    again = executor.submit(RemoteJob("v", ("--version",), NO_NEEDS))
    assert wait(executor, again) == JobState(ENDED, 0, "one")


def test_an_address_without_ray_is_a_temporary_problem(tmp_path: Path) -> None:
    before = children_of(os.getpid())
    with pytest.raises(TemporaryError, match=r"at 127\.0\.0\.1:9: Connection refused"):
        make(tmp_path, address="127.0.0.1:9")
    assert children_of(os.getpid()) <= before
