"""A dispatcher with an executor that follows a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from buildsys.execution.action_key import ActionKey
from buildsys.execution.baselines import Baselines
from buildsys.execution.dispatch import Dispatcher
from buildsys.execution.executors import watcher
from buildsys.execution.executors.interface import (
    ENDED,
    LOST,
    QUEUED,
    RUNNING,
    JobState,
    RemoteJob,
)
from buildsys.execution.job_answer import SCHEMA, Answer, encode_answer
from buildsys.execution.remote_environments import RemoteEnvironments
from buildsys.plan.action import Action, FileRef
from buildsys.store.ledger import Ledger, OutputFile
from buildsys.store.object_store import Store
from buildsys.store.shared_cache import READ_WRITE, SharedCache
from buildsys.store.signatures import NO_POLICY
from buildsys.store.state_db import StateDb

ACTION = Action(
    target="engine:m:e", stage="engine", model="m", variant="e", options={"a": 1}, inputs={},
    outputs={"result": FileRef("m/e/engine.json")}, executor="lab",
)  # fmt: skip
EXECUTORS = {"lab": {"kind": "scripted", "jobs": 2, "linger": 0.0, "remember": 3600.0}}
Step = Callable[["Scripted", RemoteJob], list[JobState]]


class Scripted:
    """Takes the next step of a script for each job; its states are polled one by one."""

    def __init__(self, store: Path, *steps: Step) -> None:
        self.store, self.steps = store, list(steps)
        self.jobs: list[RemoteJob] = []
        self.states: dict[str, list[JobState]] = {}
        self.cancelled: list[str] = []
        self.answers: dict[str, str] = {}  # handle -> last answer of a job that waits for orders

    def submit(self, job: RemoteJob) -> str:
        self.jobs.append(job)
        handle = f"job-{len(self.jobs)}"
        self.states[handle] = self.steps.pop(0)(self, job)
        return handle

    def poll(self, handles: Collection[str]) -> Mapping[str, JobState]:
        for handle in handles:
            self._obey(handle)
        return {
            handle: states.pop(0) if len(states := self.states[handle]) > 1 else states[0]
            for handle in handles
        }

    def cancel(self, handle: str) -> None:
        self.cancelled.append(handle)

    def log(self, handle: str) -> str:
        return f"first line\nlast line of {handle}\n"

    def forget(self, handle: str) -> None:
        del self.states[handle]

    def close(self) -> None:
        self.cancelled.append("all")

    def _obey(self, handle: str) -> None:
        """Answer the order of a job, if there is one, as run-action would."""
        path = self.store / f"orders/{self.answers.get(handle)}.json"
        if path.exists():
            order = json.loads(path.read_bytes())
            self._write(order["request"], order["answer"])
            self.answers[handle] = order["answer"]
            if not order["linger"]:
                self.states[handle] = [JobState(ENDED, 0)]

    def write(self, job: RemoteJob, **fields: Any) -> str:
        """Write an answer as run-action would; return its name."""
        name = job.arguments[job.arguments.index("--answer") + 1]
        self._write(job.arguments[1], name, **fields)
        return name

    def _write(self, request: str, name: str, **fields: Any) -> None:
        given = {"status": "passed", "exit_code": 0, "machine": {"name": "lab1"}, **fields}
        answer = Answer(SCHEMA, name, request, **given)
        (self.store / "answers").mkdir(exist_ok=True)
        part = self.store / "answers/part"
        part.write_bytes(encode_answer(answer, None))
        part.replace(self.store / f"answers/{name}.json")


def ends(code: int = 0, **fields: Any) -> Step:
    """Run, and leave an answer with these fields, if there are any."""

    def step(executor: Scripted, job: RemoteJob) -> list[JobState]:
        if fields:
            executor.write(job, **fields)
        waits = JobState(QUEUED, reason="Priority")
        return [waits, JobState(RUNNING, machine="lab1"), JobState(ENDED, code)]

    return step


def goes_on_after(**fields: Any) -> Step:
    """Run, leave an answer and wait for orders."""

    def step(executor: Scripted, job: RemoteJob) -> list[JobState]:
        executor.answers[f"job-{len(executor.jobs)}"] = executor.write(job, **fields)
        return [JobState(RUNNING, machine="lab1")]

    return step


def is_lost(executor: Scripted, job: RemoteJob) -> list[JobState]:
    del executor, job
    return [JobState(LOST, reason="node lab1 was lost")]


def goes_on(executor: Scripted, job: RemoteJob) -> list[JobState]:
    del executor, job
    return [JobState(RUNNING)]


class Place:
    """A dispatcher with its store; ``script`` sets what its executor does."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        open_actions: Iterable[Action] = (),
        **settings: Any,
    ) -> None:
        executors = {"lab": {**EXECUTORS["lab"], **settings}}
        self.folder, self.shared = folder, folder / "shared"
        for name in ("shared", "build", ".buildsys"):
            (folder / name).mkdir()
        self.db = StateDb(folder / ".buildsys/state.db")
        self.events: list[dict[str, Any]] = []
        self.executor = Scripted(self.shared)
        monkeypatch.setattr("buildsys.execution.dispatch.connect", lambda *_: self.executor)
        monkeypatch.setattr(watcher, "_LONGEST_S", 0.02)
        store, cache = Store(folder / ".buildsys/store"), self._cache()
        self.environments = RemoteEnvironments(executors, self.db)
        self.dispatcher = Dispatcher(
            executors, folder, folder / "build", shared=cache, url="s3://there/cache", store=store,
            environments=self.environments, signing_key=None, trust=NO_POLICY,
            baselines=Baselines(Ledger(self.db), folder, folder / ".buildsys"),
            open_actions=lambda model: [one for one in open_actions if one.model == model],
        )  # fmt: skip

    def _cache(self) -> SharedCache:
        def fail(text: str) -> None:
            raise AssertionError(text)

        return SharedCache(str(self.shared), fail, mode=READ_WRITE, required=True)

    def script(self, *steps: Step) -> None:
        self.executor.steps = list(steps)

    def build(self, action: Action = ACTION) -> Any:
        key = ActionKey(action.target, lambda: {"config:a": "1"}, {}, ())
        tree, log = self.folder / "tree", self.folder / "build/m/e/engine.log"
        return self.dispatcher.build(
            action, key, tree, log, on_event=self.events.append, rebuild=False
        )

    def object(self, digest: str) -> bytes:
        """Return an object of the shared cache."""
        found = self._cache().read_object(digest)
        assert found is not None
        return found

    def add_object(self, content: bytes) -> OutputFile:
        """Add a file to the shared cache, as another machine does."""
        from blake3 import blake3

        file = OutputFile(blake3(content).hexdigest(), len(content))
        store = Store(self.folder / "other")
        store.add(file, [content])
        self._cache().push_objects([file], store)
        return file
