"""Jobs of an executor that build the CPU stages of a model, one after another."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from forked_machine import ForkedMachine
from project_folder import finish, wait_until
from ready_project import VALUES, ReadyProject, processes_marked

CPU_STAGES = ("validate:a", "verify:a:ort")  # and all that they need
MANIFEST = "configs/models/a.yaml"
SCRIPT = 'echo "$1" >> {log}; exec {program} "$@" >> {log}'


class Jobs:
    """The jobs of a project whose targets all run on an executor."""

    def __init__(
        self, project: ReadyProject, folder: Path, elsewhere: Path, machine: ForkedMachine
    ) -> None:
        self.project, self._log, self._elsewhere = project, folder / "jobs.log", elsewhere
        self.store, self._machine = folder / "store", machine
        self.store.mkdir()
        text = (project.root / VALUES).read_text()
        for name in ("hold", "held"):  # of the project, wherever a stage runs
            text = text.replace(f'"{name}"', repr(str(project.root / name)))
        (project.root / VALUES).write_text(text)
        self.configure()

    def configure(self, *, forked: bool = True) -> None:
        program = self._machine.command if forked else [sys.executable, "-u", "-m", "buildsys"]
        script = SCRIPT.format(log=self._log, program=shlex.join(program))
        command = json.dumps(["bash", "-c", script, "job"])
        (self.project.root / "configs/project.yaml").write_text(
            f"cache: {{remote: {self.store}, mode: read-write}}\n"
            "executors:\n"
            f"  other: {{kind: process, command: {command}, env: {{TMPDIR: {self._elsewhere}}}}}\n"
            "  local: {kind: local}\n"
        )

    def started(self) -> int:
        """Return the number of jobs, without questions to machines."""
        return self._log.read_text().splitlines().count("run-action")

    def builds(self) -> Counter[str]:
        """Return how often machines have built each target."""
        return Counter(re.findall(r"^(\S+) was built in", self._log.read_text(), re.MULTILINE))

    def running(self) -> list[int]:
        found = processes_marked(self.project.mark).items()
        return [pid for pid, command in found if "run-action" in command]


@pytest.fixture
def jobs(ready: ReadyProject, tmp_path: Path, elsewhere: Path, machine: ForkedMachine) -> Jobs:
    return Jobs(ready, tmp_path, elsewhere, machine)


def test_the_cpu_stages_of_each_model_are_one_job(jobs: Jobs) -> None:
    project = jobs.project
    project.add_model("b")
    built = project.doit(*CPU_STAGES, "verify:b:ort", "bench:b:ort")
    assert built.code == 0, built.out + built.err
    assert {*jobs.builds().values()} == {1}
    assert jobs.started() == 3  # and the benchmark, which runs alone
    assert jobs.running() == []
    assert [*jobs.store.glob("answers/*"), *jobs.store.glob("orders/*")] == []
    project.edit(VALUES, "SCALE = 1.0", "SCALE = 1.00")
    changed = project.doit(*CPU_STAGES)
    assert changed.code == 0, changed.out + changed.err
    assert changed.ran == {"reference:a"}  # the golden outputs are the same
    assert jobs.started() == 4
    assert jobs.running() == []


def test_a_killed_job_loses_only_the_target_that_runs(jobs: Jobs) -> None:
    project = jobs.project
    jobs.configure(forked=False)
    project.hold()
    run = project.start(*CPU_STAGES)
    wait_until(lambda: project.is_held, "the stage runs")  # the first one, or after the export
    (job,) = jobs.running()
    (project.root / "held").unlink()
    os.kill(job, signal.SIGKILL)
    wait_until(lambda: project.is_held, "the stage runs again")
    project.edit(MANIFEST, "tool: onnxsim", "tool: onnxsim, tensor_size_threshold: 1MiB")
    project.let_go()
    done = finish(run)
    assert done.code == 0, done.out + done.err
    assert jobs.started() == 2
    assert {*jobs.builds().values()} == {1}
    again = project.doit(*CPU_STAGES)
    assert again.code == 0, again.out + again.err
    assert "simplify:a" in again.ran and "reference:a" not in again.ran


def test_a_job_goes_on_after_a_failed_stage(jobs: Jobs) -> None:
    project = jobs.project
    project.edit(VALUES, "    return", "    raise ValueError('no data')\n    return")
    failed = project.doit("-c", *CPU_STAGES)
    assert failed.code == 2
    assert "no data" in failed.out + failed.err
    assert failed.passed == {"export:a", "simplify:a", "engine:a:ort"}
    assert jobs.started() == 1
    assert jobs.running() == []  # it waited for targets that did not come
    project.edit(VALUES, "    raise ValueError('no data')\n", "")
    assert project.doit(*CPU_STAGES).code == 0
    assert {*jobs.builds().values()} == {1}
