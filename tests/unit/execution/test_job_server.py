"""The server that forks commands of buildsys."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buildsys.system.processes import Process, package_environment

MAIN = """\
import os, sys, time

def run(arguments):
    sys.stdout.write(f"{os.getpid()} {os.environ.get('COLOUR')} {arguments}\\n")
    sys.stdout.flush()
    if arguments[0] == "exit":
        return int(arguments[1])
    if arguments[0] == "kill":
        os.kill(os.getpid(), 9)
    if arguments[0] == "crash":
        raise RuntimeError("broken")
    if arguments[0] == "flood":
        sys.stderr.write("x" * 300_000 + "end")
        return 0
    time.sleep(600)
"""


class Server:
    def __init__(self, folder: Path) -> None:
        (folder / "commands_of_test.py").write_text(MAIN)
        code = f"""\
import sys
sys.path.insert(0, {str(folder)!r})
from buildsys.execution.executors import job_server
job_server._MAIN, job_server._PRELOAD = "commands_of_test", ("commands_of_test",)
job_server.main()"""
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=package_environment(),
        )

    def start(self, *arguments: str, **environment: str) -> None:
        request = {"arguments": arguments, "environment": environment}
        self._stdin.write(json.dumps(request).encode() + b"\n")
        self._stdin.flush()

    def event(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        event: dict[str, Any] = json.loads(self._process.stdout.readline())
        return event

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        self.start(*arguments, **environment)
        log = ""
        while (event := self.event())["event"] == "log":
            log += event["text"]
        return event["code"], log

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    def close(self) -> None:
        self._stdin.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


def test_jobs_have_their_own_process_environment_and_exit_code(server: Server) -> None:
    first = server.run("exit", "0", COLOUR="red")
    second = server.run("exit", "75")
    assert (first[0], second[0]) == (0, 75)
    assert "red ['exit', '0']" in first[1] and "None ['exit', '75']" in second[1]
    assert first[1].split()[0] != second[1].split()[0]


def test_a_killed_job_has_the_exit_code_of_a_shell(server: Server) -> None:
    assert server.run("kill")[0] == 137


def test_a_crash_prints_its_traceback(server: Server) -> None:
    code, log = server.run("crash")
    assert code == 70
    assert "RuntimeError: broken" in log


def test_the_end_of_a_long_log_is_kept(server: Server) -> None:
    code, log = server.run("flood")
    assert code == 0
    assert log.endswith("xend")


def test_a_job_ends_with_whoever_waits_for_it(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start("sleep")
    job = Process.of(int(server.event()["text"].split()[0]))
    assert job.is_running
    server.close()
    assert job.wait(20.0)
