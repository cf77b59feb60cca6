"""Jobs that several targets of a model share."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_executor import ACTION, Place, ends, goes_on_after

from buildsys.errors import StageError
from buildsys.execution.executors.interface import ENDED, LOST, JobState
from buildsys.execution.model_jobs import Order, decode_order, job_key
from buildsys.execution.remote_environments import question_of
from buildsys.plan.action import Action, BaselineRef, Needs

FIRST, SECOND, OTHER = (
    replace(ACTION, target=f"engine:{model}:{name}", model=model, variant=name)
    for model, name in (("m", "one"), ("m", "two"), ("n", "one"))
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    found = Place(tmp_path, monkeypatch, [FIRST, SECOND, OTHER], linger=10.0, jobs=1)
    yield found
    found.dispatcher.close()
    found.db.close()


def notes(place: Place) -> list[str]:
    return [path.name for name in ("answers", "orders") for path in (place.shared / name).glob("*")]


def test_targets_of_a_model_share_a_job(place: Place) -> None:
    place.script(goes_on_after())
    assert place.build(FIRST).status == "passed"
    assert place.build(SECOND).status == "passed"
    (job,) = place.executor.jobs
    assert job.arguments[-1] == "--linger=10"
    assert place.executor.cancelled == []  # it ends by itself, as no target is left
    assert notes(place) == []
    place.script(ends(status="passed", exit_code=0))
    assert place.build(FIRST).status == "passed"  # again: by another job, which has to end
    assert "--linger=10" not in place.executor.jobs[1].arguments


def test_targets_at_the_same_time_take_turns(place: Place) -> None:
    place.script(goes_on_after())
    threads = [threading.Thread(target=place.build, args=[one]) for one in (FIRST, SECOND)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(place.executor.jobs) == 1


@pytest.mark.parametrize("state", [JobState(ENDED, 0), JobState(ENDED, 137), JobState(LOST)])
def test_a_job_that_has_ended_is_replaced(place: Place, state: JobState) -> None:
    place.script(goes_on_after(), ends(status="passed", exit_code=0))
    place.build(FIRST)
    place.executor.answers.clear()
    place.executor.states["job-1"] = [state]
    assert place.build(SECOND).status == "passed"
    assert len(place.executor.jobs) == 2
    messages = [event.get("message") for event in place.events]
    assert "trying again: the job of its model ended" in messages


@pytest.mark.parametrize(("code", "goes_on"), [(2, True), (3, False)])
def test_a_failed_stage_does_not_end_a_job(place: Place, code: int, goes_on: bool) -> None:
    place.script(
        goes_on_after(status="error", exit_code=code, reason="it broke"),
        ends(status="passed", exit_code=0),
    )
    with pytest.raises(StageError, match="it broke"):
        place.build(FIRST)
    assert place.build(SECOND).status == "passed"
    assert len(place.executor.jobs) == 1 + (not goes_on)
    assert place.executor.cancelled == ["job-1"] * (not goes_on)


def test_a_job_ends_once_no_target_is_left(place: Place) -> None:
    place.script(goes_on_after(), ends(status="passed", exit_code=0))
    place.build(FIRST)
    place.dispatcher.settle(OTHER)
    assert place.executor.cancelled == []
    place.dispatcher.settle(SECOND)  # it was up to date
    assert place.executor.cancelled == ["job-1"]
    assert place.executor.states == {}
    place.build(OTHER)  # in the only slot
    place.dispatcher.settle(OTHER)
    assert place.dispatcher._places["lab"].jobs == {}


def test_a_job_that_waits_in_vain_gives_its_slot_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, monkeypatch, [FIRST, SECOND, OTHER], linger=0.05, jobs=1)
    place.script(goes_on_after(), ends(status="passed", exit_code=0))
    place.build(FIRST)
    assert place.build(OTHER).status == "passed"
    assert place.executor.cancelled == ["job-1"]
    place.dispatcher.close()
    place.db.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"measures": True},
        {"devices": ("gpu",)},
        {"needs": Needs(gpu_count=1)},
        {"needs": Needs(exclusive=True)},
        {"baseline": BaselineRef("e", "engine:m:e")},
    ],
)
def test_what_needs_a_gpu_or_measures_has_a_job_of_its_own(fields: dict[str, Any]) -> None:
    assert job_key(replace(ACTION, **fields)) is None


def test_the_time_limit_of_a_job_is_that_of_its_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited: list[Action] = [replace(one, timeout_s=60.0) for one in (FIRST, SECOND)]
    place = Place(tmp_path, monkeypatch, [*limited, OTHER], linger=10.0)
    place.script(goes_on_after(), ends(status="passed", exit_code=0))
    for action in (limited[0], OTHER):
        place.build(action)
    assert [job.needs.time_s for job in place.executor.jobs] == [720.0, 0.0]
    place.dispatcher.close()
    place.db.close()


def test_machines_are_asked_once_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu = replace(SECOND, tools=("torch",), needs=Needs(gpu_count=1))
    later = replace(SECOND, tools=("onnx",))
    place = Place(tmp_path, monkeypatch, [FIRST, later, with_gpu])
    asked = {question_of(one): {} for one in (FIRST, later)}
    place.script(ends(status="passed", exit_code=0, environments=asked))
    place.dispatcher.learn(FIRST, [], place.events.append)
    questions = json.loads(place.object(place.executor.jobs[0].arguments[1]))
    assert questions == sorted(asked)
    place.dispatcher.close()
    place.db.close()


def test_orders_are_checked() -> None:
    order = Order("a" * 64, "b" * 32, False, 10.0)
    assert decode_order(order.encode()) == order
    for broken in (
        replace(order, request="../x"),
        replace(order, answer="../x"),
        replace(order, linger=-1.0),
    ):
        assert decode_order(broken.encode()) is None
    for content in (b"", b"[]", b"{}", b"\xff", b'{"request": 1}'):
        assert decode_order(content) is None
