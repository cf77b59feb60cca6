"""Jobs of an executor that build the CPU stages of a model, one after another."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from project_folder import finish, wait_until
from ready_project import VALUES, ReadyProject, contents, processes_marked, targets

MANIFEST = "configs/models/a.yaml"
SCRIPT = 'echo "$1" >> {log}; exec "$0" -u -m buildsys "$@" >> {log}'


class Jobs:
    """The jobs of a project whose targets all run on an executor."""

    def __init__(self, project: ReadyProject, folder: Path, elsewhere: Path) -> None:
        self.project, self._log, self._elsewhere = project, folder / "jobs.log", elsewhere
        self.store = folder / "store"
        self.store.mkdir()
        text = (project.root / VALUES).read_text()
        for name in ("hold", "held"):  # of the project, wherever a stage runs
            text = text.replace(f'"{name}"', repr(str(project.root / name)))
        (project.root / VALUES).write_text(text)
        self.configure()

    def configure(self, settings: str = "") -> None:
        command = json.dumps(["bash", "-c", SCRIPT.format(log=self._log), sys.executable])
        (self.project.root / "configs/project.yaml").write_text(
            f"cache: {{remote: {self.store}, mode: read-write}}\n"
            "executors:\n"
            f"  other: {{kind: process, command: {command}, env: {{TMPDIR: {self._elsewhere}}}"
            f"{settings}}}\n"
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


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary folder of all jobs, as it keeps their worker servers."""
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture
def jobs(ready: ReadyProject, tmp_path: Path, elsewhere: Path) -> Jobs:
    return Jobs(ready, tmp_path, elsewhere)


def test_the_cpu_stages_of_each_model_are_one_job(jobs: Jobs) -> None:
    project = jobs.project
    project.add_model("b")
    built = project.doit("build")
    assert built.code == 0, built.out + built.err
    assert built.passed == targets("a") | targets("b")
    assert jobs.started() == 4  # and the benchmarks, which run alone
    assert jobs.running() == []
    assert [*jobs.store.glob("answers/*"), *jobs.store.glob("orders/*")] == []
    project.edit(VALUES, "SCALE = 1.0", "SCALE = 1.00")
    changed = project.doit("build")
    assert changed.code == 0, changed.out + changed.err
    made = {f"{stage}:{model}" for stage in ("reference", "report") for model in "ab"}
    assert changed.ran == made  # the golden outputs are the same
    assert jobs.started() == 4 + 2
    assert jobs.running() == []
    jobs.configure(", linger: 0")
    project.write_network(1)
    assert project.doit("build:a").code == 0
    assert jobs.started() == 4 + 2 + len(targets("a")) - 1  # reports are written here


def test_a_killed_job_loses_only_the_target_that_runs(jobs: Jobs) -> None:
    project = jobs.project
    project.hold()
    run = project.start("build:a")
    wait_until(lambda: project.is_held and jobs.builds(), "one target is done")
    (job,) = jobs.running()
    (project.root / "held").unlink()
    os.kill(job, signal.SIGKILL)
    wait_until(lambda: project.is_held, "the stage runs again")
    project.edit(MANIFEST, "tool: onnxsim", "tool: onnxsim, tensor_size_threshold: 1MiB")
    project.let_go()
    done = finish(run)
    assert done.code == 0, done.out + done.err
    assert jobs.started() == 3  # two, and the benchmark
    assert jobs.builds() == Counter(targets("a") - {"report:a"})
    again = project.doit("build:a")
    assert again.code == 0, again.out + again.err
    assert "simplify:a" in again.ran and "reference:a" not in again.ran
    found = contents(project.root / "build")
    (project.root / "configs/project.yaml").unlink()  # the clean build is one of this machine
    assert project.clean_contents() == found


def test_a_job_goes_on_after_a_failed_stage(jobs: Jobs) -> None:
    project = jobs.project
    project.edit(VALUES, "    return", "    raise ValueError('no data')\n    return")
    failed = project.doit("-c", "build:a")
    assert failed.code == 2
    assert "no data" in failed.out + failed.err
    assert failed.passed >= {"export:a", "simplify:a", "engine:a:ort"}
    assert jobs.started() == 1
    project.edit(VALUES, "    raise ValueError('no data')\n", "")
    assert project.doit("build:a").code == 0
    assert {*jobs.builds().values()} == {1}


def test_the_end_of_a_run_ends_jobs_that_wait(jobs: Jobs) -> None:
    project = jobs.project
    assert project.doit("reference:a").code == 0  # its job waits for other targets
    assert jobs.running() == []
    project.edit(VALUES, "SCALE = 1.0", "SCALE = 2.0")
    project.hold()
    run = project.start("build:a")
    wait_until(lambda: project.is_held and jobs.running(), "the stage runs")
    os.kill(run.pid, signal.SIGINT)
    assert finish(run).code == 130
    wait_until(lambda: not jobs.running(), "the job ends with its run")
    project.let_go()
    done = project.doit("build:a")
    assert done.code == 0
    assert jobs.builds()["export:a"] == 1
