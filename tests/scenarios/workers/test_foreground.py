"""Stages in the foreground: on this terminal, with the interpreter and libraries of a worker."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pool_project import STAGES, import_from, orchestrator

from buildsys.errors import CheckFailed, StageError, WorkerDied
from buildsys.workers.job import Job
from buildsys.workers.pool import JobReply, WorkerPool


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    import_from(monkeypatch)
    with WorkerPool(tmp_path / ".buildsys") as pool:
        yield pool


def run(pool: WorkerPool, behaviour: str, *, debugger: bool = False) -> JobReply:
    folder = pool.state.parent
    outputs = {"result": folder / "result.json"}
    job = Job("export:m", STAGES, "m", "", {"do": behaviour}, {}, outputs, folder)
    return pool.run(job, log=None, debugger=debugger)


def test_progress_is_printed(
    pool: WorkerPool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reply = run(pool, "report_progress")
    assert (reply.status, reply.reason) == ("passed", "")
    assert capfd.readouterr().out == "… first\n… second\n"
    assert json.loads((tmp_path / "result.json").read_bytes())["status"] == "passed"


def test_a_failed_check_is_a_result(pool: WorkerPool) -> None:
    with pytest.raises(CheckFailed, match="outputs differ; see the tensors"):
        run(pool, "raise_check_failed")


def test_an_exception_opens_the_debugger_where_it_was_raised(
    pool: WorkerPool, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StageError, match="ValueError: first line of it"):
        run(pool, "raise_unexpected", debugger=True)  # its standard input is empty
    printed = capfd.readouterr()
    assert "Traceback" in printed.err
    assert "(Pdb)" in printed.out
    assert '-> {}["missing"]' in printed.out, "the cause, not the last exception"


def test_a_crash_is_one_sentence(pool: WorkerPool) -> None:
    with pytest.raises(WorkerDied, match=r"the worker of export:m was killed by signal 9") as died:
        run(pool, "kill_itself")
    assert died.value.hint == "the output above has its last words"


def test_ctrl_c_is_for_the_stage(tmp_path: Path) -> None:
    with orchestrator(tmp_path, "hang", "foreground") as process:
        assert process.stdout is not None
        printed = ""  # by two processes, whose lines may mix
        while len(re.findall(r"\d+", printed)) < 2:  # started, and in hang
            printed += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, errors
    assert "in hang" in errors, "the traceback of the stage"
