"""Stages in the foreground, with the code of a worker but without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pool_project import STAGES

from buildsys.errors import StageError, WorkerDied
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.workers.foreground import run_in_foreground
from buildsys.workers.job import Job


def run(folder: Path, behaviour: str, *, debugger: bool = False) -> Any:
    outputs = {"result": folder / "result.json"}
    job = Job("export:m", STAGES, "m", "", {"do": behaviour}, {}, outputs, folder)
    return run_in_foreground(job, folder, debugger=debugger)


def test_progress_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    answer = run(tmp_path, "report_progress")
    assert (answer["status"], answer["reason"]) == ("passed", "")
    assert capfd.readouterr().out == "… first\n… second\n"
    assert json.loads((tmp_path / "result.json").read_bytes())["status"] == "passed"


def test_a_failed_check_is_a_result(tmp_path: Path) -> None:
    answer = run(tmp_path, "raise_check_failed")
    fields = ("status", "reason", "hint")
    assert [answer[one] for one in fields] == ["failed", "outputs differ", "see the tensors"]


def test_an_exception_opens_the_debugger_where_it_was_raised(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StageError, match="ValueError: first line of it"):
        run(tmp_path, "raise_unexpected", debugger=True)  # its standard input is empty
    printed = capfd.readouterr()
    assert "Traceback" in printed.err
    assert "(Pdb)" in printed.out
    assert '-> {}["missing"]' in printed.out, "the cause, not the last exception"


def test_a_crash_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match=r"the worker of export:m was killed by signal 9"):
        run(tmp_path, "kill_itself")


def test_the_output_of_a_broken_interpreter_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho loading plugins\nkill -SEGV $$\n")
    python.chmod(0o755)
    outputs, toolchain = {"result": tmp_path / "result.json"}, Toolchain("ill", python, {})
    job = Job(
        "engine:m:e", STAGES, "m", "e", {"do": "echo"}, {}, outputs, tmp_path, toolchain=toolchain
    )
    with pytest.raises(StageError, match="crashed with a segmentation fault") as crashed:
        run_in_foreground(job, tmp_path)
    assert "full log" not in str(crashed.value)
    assert "loading plugins" in capfd.readouterr().err
