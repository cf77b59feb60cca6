"""The executors that targets are placed on."""

from __future__ import annotations

from typing import Any

import pytest

from buildsys.execution.machine_needs import Machine, lacking_on
from buildsys.execution.placement import Placement, Placer
from buildsys.plan.action import NO_NEEDS, Action, FileRef, Needs

H100 = {"kind": "process", "offers": {"gpu": "H100 80GB", "count": 8, "memory": 1 << 40}}
LAB = {"kind": "process", "offers": {"labels": ["trt86", "lab"], "memory": 64 << 30}}
LOCAL = {"kind": "local"}


def action(needs: Needs = NO_NEEDS, stage: str = "engine") -> Action:
    return Action(
        target=f"{stage}:m:e", stage=stage, model="m", variant="e", options={}, inputs={},
        outputs={"result": FileRef("m/e.json")}, needs=needs,
    )  # fmt: skip


def place(needs: Needs, here: str = "a GPU", **executors: dict[str, Any]) -> Placement:
    return Placer(executors, lambda wanted: here if any(wanted) else "").place(action(needs))


def test_targets_without_needs_run_here() -> None:
    assert place(NO_NEEDS, h100=H100) == Placement("", "it needs nothing")


def test_this_machine_comes_first_if_it_has_what_is_needed() -> None:
    gpu = Needs(gpu="H100", gpu_count=1)
    assert place(gpu, here="", h100=H100) == Placement("", "the first that has what it needs")
    found = place(gpu, h100=H100)
    assert found == Placement("h100", "this machine lacks a GPU")


def test_this_machine_comes_where_it_is_listed() -> None:
    assert place(NO_NEEDS, lab=LAB, local=LOCAL).executor == "lab"
    assert place(NO_NEEDS, local=LOCAL, lab=LAB).executor == ""
    assert place(Needs(labels=("trt10",)), here="", lab=LAB, local=LOCAL).executor == ""


@pytest.mark.parametrize(
    ("needs", "executor"),
    [
        (Needs(gpu="H100", gpu_count=8), "h100"),
        (Needs(gpu="H100", gpu_count=9), ""),
        (Needs(memory=128 << 30), "h100"),
        (Needs(memory=32 << 30), "lab"),
        (Needs(labels=("lab",)), "lab"),
        (Needs(labels=("lab", "trt10")), ""),
        (Needs(compute_capability="9.0", gpu_count=1), ""),  # nobody offers one
    ],
)
def test_the_first_executor_with_everything_is_taken(needs: Needs, executor: str) -> None:
    found = place(needs, lab=LAB, h100=H100)
    assert found.executor == executor
    assert bool(found.obstacles) == (not executor)


def test_obstacles_name_what_each_place_lacks() -> None:
    found = place(Needs(labels=("trt10",)), lab=LAB, h100=H100)
    assert found.obstacles == (
        "this machine lacks a GPU", "lab lacks the label trt10", "h100 lacks the label trt10",
    )  # fmt: skip


def test_reports_are_written_here() -> None:
    placer = Placer({"lab": LAB, "local": LOCAL}, lambda _: "")
    assert placer.place(action(stage="report")).executor == ""
    assert Placer({}, lambda _: "").place(action()).why == "no executors are configured"


def test_unknown_memory_is_enough() -> None:
    assert lacking_on(Machine((), 0, frozenset()), Needs(memory=1 << 40)) == ""
