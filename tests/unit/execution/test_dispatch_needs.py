"""What the dispatcher asks an executor for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from buildsys.errors import StageError
from buildsys.execution import dispatch
from buildsys.execution.action_key import ActionKey
from buildsys.execution.baselines import Baselines
from buildsys.execution.dispatch import Dispatcher
from buildsys.execution.executors.interface import JobExecutor, RemoteJob
from buildsys.execution.remote_environments import RemoteEnvironments
from buildsys.plan.action import Action, FileRef, Needs
from buildsys.store.object_store import Store
from buildsys.store.shared_cache import READ_WRITE, SharedCache
from buildsys.store.signatures import NO_POLICY

EXECUTORS: dict[str, dict[str, Any]] = {
    "lab": {"kind": "process", "remember": 60.0, "jobs": 1, "linger": 0.0}
}


class Texts(dict[str, str]):
    def set(self, name: str, text: str, /) -> None:
        self[name] = text


class Refusing:
    """An executor that keeps jobs and starts none."""

    def __init__(self) -> None:
        self.jobs: list[RemoteJob] = []

    def submit(self, job: RemoteJob) -> str:
        self.jobs.append(job)
        raise StageError("refused")


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    made = Refusing()
    monkeypatch.setattr(dispatch, "connect", lambda *_: cast("JobExecutor", made))
    return made


@pytest.fixture
def dispatcher(tmp_path: Path) -> Dispatcher:
    (tmp_path / "shared").mkdir()
    shared = SharedCache(str(tmp_path / "shared"), pytest.fail, mode=READ_WRITE, required=True)
    return Dispatcher(
        EXECUTORS, tmp_path, tmp_path / "build", shared=shared, url=str(tmp_path / "shared"),
        store=Store(tmp_path / "store"), environments=RemoteEnvironments(EXECUTORS, Texts()),
        baselines=cast("Baselines", object()), signing_key=None, trust=NO_POLICY,
    )  # fmt: skip


def action(needs: Needs, **fields: Any) -> Action:
    fields = {"target": "engine:m:e", "stage": "engine", "executor": "lab", **fields}
    fields = {"outputs": {}, **fields}
    return Action(model="m", variant="e", options={}, inputs={}, needs=needs, **fields)


def test_machines_are_asked_with_the_gpus_of_their_targets(
    executor: Refusing, dispatcher: Dispatcher
) -> None:
    on_cpu = action(Needs(memory=1 << 30))
    on_gpu = action(Needs(gpu="H100", gpu_count=2, exclusive=True, time_s=9.0), tools=("torch",))
    elsewhere = replace(action(Needs(gpu_count=8)), executor="other")
    with pytest.raises(StageError, match="refused"):
        dispatcher.learn(on_cpu, [on_gpu, elsewhere], lambda _: None)
    assert executor.jobs[0].needs == Needs(gpu="H100", gpu_count=2)


@pytest.mark.parametrize(
    ("needs", "timeout_s", "time_s"),
    [(Needs(), None, 0.0), (Needs(), 60.0, 360.0), (Needs(time_s=90.0), 60.0, 90.0)],
)
def test_the_time_limit_of_a_stage_is_that_of_its_job(
    executor: Refusing,
    dispatcher: Dispatcher,
    tmp_path: Path,
    needs: Needs,
    timeout_s: float,
    time_s: float,
) -> None:
    outputs = {"result": FileRef("m/e.json")}
    stage = action(needs, timeout_s=timeout_s, measures=True, outputs=outputs)
    key, tree, log = ActionKey(stage.target, dict, {}, ()), tmp_path / "tree", tmp_path / "e.log"
    with pytest.raises(StageError, match="refused"):
        dispatcher.build(stage, key, tree, log, on_event=lambda _: None, rebuild=False)
    assert executor.jobs[0].needs.time_s == time_s
    assert executor.jobs[0].exclusive
