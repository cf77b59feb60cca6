"""Scheduling of whole models, with doit's own runners."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from doit.dependency import DbmDB, Dependency
from doit.exceptions import TaskFailed
from doit.runner import Runner
from doit.task import Stream, Task

from buildsys.cli.model_scheduler import Control, Models, ModelScheduler, ThreadRunner
from buildsys.system.turns import waiting

STAGES = {"export": (), "check": ("export",), "engine": ("export",), "report": ("check", "engine")}


class Reporter:
    """Notes the order of targets."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.failed: list[str] = []

    def add_success(self, task: Task) -> None:
        self.ran.append(task.name)

    def add_failure(self, task: Task, fail: Any) -> None:
        self.failed.append(task.name)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Run:
    """A run of models with four targets each."""

    def __init__(
        self, tmp_path: Any, models: int, jobs: Mapping[str, int], *, one_job: bool = False
    ) -> None:
        self.reporter = Reporter()
        self.database = Dependency(DbmDB, str(tmp_path / "doit"))
        self.guard = threading.Lock()
        self.running, self.most_running = Counter[str](), Counter[str]()
        self.most_open = 0
        self.work: Callable[[str], Any] = lambda _: None
        names = [f"m{number:03d}" for number in range(models)]
        models_of_run = Models(names, self.tasks_of, self.place_of, jobs)
        if one_job:
            models_of_run = models_of_run._replace(
                job_of=lambda target: target.partition(":")[2], place_of=lambda _: "cpu"
            )
        self.scheduler = ModelScheduler(models_of_run)

    @staticmethod
    def place_of(target: str) -> str:
        return "gpu" if target.startswith("engine:") else "cpu"

    def tasks_of(self, model: str) -> list[Task]:
        tasks = [
            Task(
                f"{stage}:{model}",
                [(self.run, [f"{stage}:{model}"])],
                task_dep=[f"{name}:{model}" for name in after],
            )
            for stage, after in STAGES.items()
        ]
        members = [task.name for task in tasks]
        return [*tasks, Task(f"build:{model}", None, task_dep=members, has_subtask=True)]

    def run(self, target: str) -> Any:
        place = self.place_of(target)
        with self.guard:
            self.running[place] += 1
            self.most_running |= self.running
            self.most_open = max(self.most_open, len(self.scheduler.tasks))
        try:
            return self.work(target)
        finally:
            with self.guard:
                self.running[place] -= 1

    def start(self, threads: int = 0, *, goes_on: bool = False) -> int:
        given = self.database, self.reporter, goes_on, False, Stream(0)
        runner = ThreadRunner(*given, threads) if threads else Runner(*given)
        code: int = runner.run_all(self.scheduler)
        return code

    @property
    def targets(self) -> list[str]:
        return [name for name in self.reporter.ran if not name.startswith("build:")]


def test_one_thread_follows_the_plan(tmp_path: Any) -> None:
    run = Run(tmp_path, 3, {"cpu": 1, "gpu": 1})
    assert run.start() == 0
    models = ("m000", "m001", "m002")
    assert run.targets == [f"{stage}:{model}" for model in models for stage in STAGES]
    assert (run.scheduler.tasks, run.scheduler.nodes) == ({}, {})


@pytest.mark.parametrize("threads", [5, 40])
def test_places_have_their_own_number_of_targets(tmp_path: Any, threads: int) -> None:
    run = Run(tmp_path, 30, {"cpu": 3, "gpu": 2})

    def work(target: str) -> None:
        with waiting():
            time.sleep(0.001)

    run.work = work
    assert run.start(threads) == 0
    assert sorted(run.targets) == sorted(f"{s}:m{n:03d}" for s in STAGES for n in range(30))
    assert dict(run.most_running) == {"cpu": 3, "gpu": 2}
    ended = {name: at for at, name in enumerate(run.targets)}
    for stage, after in STAGES.items():
        for model in (f"m{number:03d}" for number in range(30)):
            assert all(ended[f"{one}:{model}"] < ended[f"{stage}:{model}"] for one in after)


def test_of_one_job_one_target_runs_and_one_is_prepared(tmp_path: Any) -> None:
    run = Run(tmp_path, 12, {"cpu": 3, "gpu": 3}, one_job=True)
    running, most = Counter[str](), Counter[str]()

    def work(target: str) -> None:
        model = target.partition(":")[2]
        with run.guard:
            running[model] += 1
            most["models"] = max(most["models"], len(+running))
            most["targets"] = max(most["targets"], running[model])
        with waiting():
            time.sleep(0.002)
        with run.guard:
            running[model] -= 1

    run.work = work
    assert run.start(8) == 0
    assert sorted(run.targets) == sorted(f"{s}:m{n:03d}" for s in STAGES for n in range(12))
    assert most["targets"] == 2  # check and engine do not depend on each other
    assert most["models"] == 3
    assert (run.scheduler._busy, run.scheduler._active) == ({}, {})
    assert not +run.scheduler._started


def test_a_busy_place_keeps_no_other_idle(tmp_path: Any) -> None:
    """Targets of the place that is waited for would otherwise take all threads."""
    run = Run(tmp_path, 20, {"cpu": 2, "gpu": 1})
    exported = Counter[str]()
    released = threading.Event()

    def work(target: str) -> None:
        stage = target.partition(":")[0]
        with run.guard:
            exported[stage] += 1
            if exported["export"] == 20:
                released.set()
        if stage == "engine":
            assert released.wait(10)

    run.work = work
    assert run.start(3) == 0
    assert exported["report"] == 20


def test_tasks_of_finished_models_are_dropped(tmp_path: Any) -> None:
    run = Run(tmp_path, 500, {"cpu": 2, "gpu": 1})
    assert run.start(3) == 0
    assert len(run.targets) == 2000
    assert run.most_open <= 64 * (len(STAGES) + 1)
    assert (run.scheduler.tasks, run.scheduler.nodes) == ({}, {})


def test_a_failure_skips_what_needs_it(tmp_path: Any) -> None:
    run = Run(tmp_path, 3, {"cpu": 2, "gpu": 1})
    run.work = lambda target: TaskFailed("no") if target == "engine:m001" else None
    assert run.start(3, goes_on=True) != 0
    assert run.reporter.failed == ["engine:m001", "report:m001", "build:m001"]
    assert len(run.targets) == 3 * len(STAGES) - 2
    assert run.scheduler.tasks == {}


def test_a_failure_ends_the_run_without_continue(tmp_path: Any) -> None:
    run = Run(tmp_path, 50, {"cpu": 1, "gpu": 1})
    run.work = lambda target: TaskFailed("no") if target == "export:m001" else None
    assert run.start(2) != 0
    assert run.reporter.failed == ["export:m001"]
    assert not any("m01" in target for target in run.targets)


def test_an_interruption_reaches_the_main_thread(tmp_path: Any) -> None:
    run = Run(tmp_path, 2, {"cpu": 2, "gpu": 1})

    def interrupt(target: str) -> None:
        raise KeyboardInterrupt

    run.work = interrupt
    with pytest.raises(KeyboardInterrupt):
        run.start(3)


def test_other_runs_have_the_dispatcher_of_doit() -> None:
    control = Control([Task("a", None)])
    control.process(["a"])
    assert not isinstance(control.task_dispatcher(), ModelScheduler)
    Control.models = Models(["m"], lambda _: [], lambda _: "")
    assert isinstance(control.task_dispatcher(), ModelScheduler)
    assert Control.models is None
