"""The dispatcher with an executor that follows a script."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_executor import ACTION, EXECUTORS, Place, Scripted, ends, goes_on, is_lost

from buildsys.errors import StageError, TemporaryError, WorkerDied
from buildsys.execution.dispatch import ATTEMPTS
from buildsys.execution.executors import watcher
from buildsys.execution.executors.interface import (
    LOST,
    JobExecutor,
    JobState,
)
from buildsys.execution.executors.watcher import Watcher
from buildsys.execution.remote_environments import RemoteEnvironments, question_of


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    found = Place(tmp_path, monkeypatch)
    yield found
    found.dispatcher.close()
    found.db.close()


def test_outputs_figures_and_log_arrive(place: Place) -> None:
    result, log = place.add_object(b'{"stage": "engine"}'), place.add_object(b"built\n")
    place.script(
        ends(files={"m/e/engine.json": result}, log=log, figures={"size": 7}, seconds=2.5, key="k",
             reads={"read:x": "n.py:3"}, machine={"name": "lab1", "gpus": "NVIDIA H100"})
    )  # fmt: skip
    reply = place.build()
    assert (reply.status, reply.seconds, reply.figures) == ("passed", 2.5, {"size": 7})
    assert (reply.elsewhere.key, reply.elsewhere.reads) == ("k", {"read:x": "n.py:3"})
    assert (place.folder / "tree/m/e/engine.json").read_bytes() == b'{"stage": "engine"}'
    assert reply.log.read_text() == "# engine:m:e ran on lab1\nbuilt\n"
    (job,) = place.executor.jobs
    assert job.name == "engine-m-e"
    assert job.arguments[0] == "run-action"
    assert job.arguments[2:4] == ("--store", "s3://there/cache")
    shown = [event.get("where") or event.get("holder") or event["event"] for event in place.events]
    assert shown == ["lab (Priority)", "started", "lab1", "progress", "lab1 (NVIDIA H100)"]
    assert list((place.shared / "answers").iterdir()) == []


def test_lost_and_killed_jobs_are_tried_again(place: Place) -> None:
    place.script(is_lost, ends(137), ends())
    with pytest.raises(StageError, match="without an answer: last line of job-3"):
        place.build()
    assert len(place.executor.jobs) == 3
    tried = [e["message"] for e in place.events if "trying again" in e.get("message", "")]
    assert tried == [
        "trying again: the job was lost: node lab1 was lost",
        "trying again: the job ended with exit code 137: last line of job-2",
    ]
    names = {job.arguments[-1] for job in place.executor.jobs}
    assert len(names) == 3  # an answer of a job that counts as lost is not taken for another's
    assert place.executor.states == {}


def test_attempts_are_limited(place: Place) -> None:
    place.script(*[is_lost] * ATTEMPTS)
    with pytest.raises(TemporaryError, match=r"3 attempts failed: .*node lab1 was lost"):
        place.build()


def test_a_temporary_problem_there_is_tried_again(place: Place) -> None:
    place.script(
        ends(75, status="error", exit_code=75, reason="the disk is full"), is_lost, is_lost
    )
    with pytest.raises(TemporaryError):
        place.build()
    assert len(place.executor.jobs) == 3


@pytest.mark.parametrize(("code", "asked_again"), [(2, False), (3, True)])
def test_a_failed_stage_is_not_tried_again(place: Place, code: int, asked_again: bool) -> None:
    place.environments.remember("lab", {"question": {}})
    place.script(ends(code, status="error", exit_code=code, reason="it broke", hint="repair it"))
    with pytest.raises(StageError, match=re.escape("it broke (on lab1)")) as caught:
        place.build()
    assert caught.value.hint == "repair it"
    known = RemoteEnvironments(EXECUTORS, place.db)._answers("lab")
    assert (known == {}) is asked_again


def test_a_failed_check_is_a_result(place: Place) -> None:
    result = place.add_object(b"{}")
    failed = {"status": "failed", "exit_code": 1, "reason": "y differs", "hint": "h"}
    place.script(ends(1, files={"m/e/engine.json": result}, **failed))
    reply = place.build()
    assert (reply.status, reply.reason, reply.hint) == ("failed", "y differs", "h")


def test_files_that_are_missing_or_damaged_are_refused(place: Place) -> None:
    result = place.add_object(b"{}")
    (stored,) = place.shared.glob(f"objects/*/{result.digest}*")
    stored.chmod(0o644)
    stored.write_bytes(b"[]")
    place.script(ends(files={"m/e/engine.json": result}))
    with pytest.raises((TemporaryError, AssertionError), match=r"digest|damaged"):
        place.build()


def test_machines_are_asked_once(place: Place) -> None:
    asked = replace(ACTION, tools=("onnx",))
    question = question_of(asked)
    place.script(ends(environments={question: {"tool:onnx": "1.0"}}))
    others = [replace(ACTION, executor="other", tools=("torch",)), asked]
    place.dispatcher.learn(asked, others, place.events.append)
    place.dispatcher.learn(asked, others, place.events.append)
    assert place.environments.of_action(asked) == {"tool:onnx": "1.0"}
    assert RemoteEnvironments(EXECUTORS, place.db).of_action(asked) == {"tool:onnx": "1.0"}
    (job,) = place.executor.jobs
    assert job.arguments[0] == "describe-machine"
    other = {"lab": {**EXECUTORS["lab"], "command": ["ssh", "x"]}}
    unknown = RemoteEnvironments(other, place.db).of_action(asked)
    assert unknown == {"machines:lab": "not known yet"}
    more = {"lab": {**EXECUTORS["lab"], "jobs": 9}}
    assert RemoteEnvironments(more, place.db).of_action(asked) == {"tool:onnx": "1.0"}


def test_what_was_asked_long_ago_is_asked_again(place: Place) -> None:
    place.environments.remember("lab", {question_of(ACTION): {"tool:onnx": "1.0"}})
    old = {"lab": {**EXECUTORS["lab"], "remember": 0.0}}
    assert RemoteEnvironments(old, place.db).of_action(ACTION) == {"machines:lab": "not known yet"}


def test_the_end_of_the_run_cancels_jobs(place: Place) -> None:
    place.script(goes_on)
    failures: list[Exception] = []

    def build() -> None:
        try:
            place.build()
        except WorkerDied as error:
            failures.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    while not place.executor.states:
        pass
    place.dispatcher.stop()
    thread.join(10)
    assert place.executor.cancelled == ["job-1"]
    assert "the run was ended" in str(failures[0])
    with pytest.raises(WorkerDied):
        place.build()


class Unreachable(Scripted):
    """An executor that cannot be polled."""

    def poll(self, handles: Collection[str]) -> Mapping[str, JobState]:
        raise TemporaryError("the cluster does not answer", "wait")


def test_jobs_of_an_unreachable_system_are_lost_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_UNREACHABLE_S", 0.05)
    executor: JobExecutor = Unreachable(tmp_path)
    state = Watcher(executor).wait("job-1", lambda _: None)
    assert state is not None
    assert state.phase == LOST
    assert "no answer for 0.05 s: the cluster does not answer" in state.reason
