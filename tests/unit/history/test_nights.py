"""Selection of a gate's earlier runs, one value per night."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from recorded_builds import MakeBuild

from buildsys.history.builds import RESTORED, Build
from buildsys.history.database import History, digest_of
from buildsys.history.nights import Nights, PresentBuild, gate_nights

DAY_S = 86_400
PROJECT = "host/acme/models"
TODAY = 20_000 * DAY_S + 3600.0
HERE = {"device:cpu.model": "Zen", "env:OMP_NUM_THREADS": "unset", "tool:onnxruntime": "1.23"}
BEFORE = {**HERE, "tool:onnxruntime": "1.22"}


class Runs:
    """Recorded runs of a gate, each some days before today."""

    def __init__(self, history: History, make_build: MakeBuild) -> None:
        self.history, self._make = history, make_build

    def add(self, days_ago: int, latency: float, engine: str = "x", **fields: Any) -> Build:
        environment = json.dumps(fields.pop("environment", BEFORE))
        fields.setdefault("figures", {"engine": engine, "latency": latency})
        build = self._make(
            target="gate:m:ort",
            position=TODAY - days_ago * DAY_S + len(self.history.builds()),
            environment=digest_of(environment),
            **fields,
        )
        self.history.add(build, texts=[environment])
        return build

    def found(self, engine: str = "x", pinned: str = "", parts: dict[str, str] = HERE) -> Nights:
        present = PresentBuild("gate:m:ort", "aaaa", parts, engine, PROJECT)
        return gate_nights(self.history, present, pinned=pinned)


@pytest.fixture
def runs(history: History, make_build: MakeBuild, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(time, "time", lambda: TODAY + 600)
    return Runs(history, make_build)


def test_runs_of_one_day_are_one_night(runs: Runs) -> None:
    runs.add(3, 1.0)
    for latency in (1.0, 3.0, 1.5):
        runs.add(2, latency)
    runs.add(1, 2.0, environment=HERE)
    runs.add(0, 4.0, environment=HERE)
    runs.add(0, 5.0, environment=HERE)
    found = runs.found()
    assert found.earlier == {"latency": [1.5, 1.0]}
    assert found.recent == {"latency": [2.0]}
    assert sorted(found.tonight["latency"]) == [4.0, 5.0]


def test_a_build_is_an_engine_with_its_libraries(runs: Runs) -> None:
    runs.add(3, 1.0, "x")
    runs.add(2, 2.0, "y", environment=HERE)
    runs.add(1, 3.0, "x", environment=HERE)
    assert runs.found("x").recent == {"latency": [3.0]}
    assert runs.found("x").earlier == {"latency": [2.0, 1.0]}
    assert runs.found("y").earlier == {"latency": [3.0, 1.0]}
    assert runs.found("x", pinned="y").earlier == {"latency": [2.0]}


@pytest.mark.parametrize(
    "other",
    [
        {"machine_id": "bbbb"},
        {"environment": {**BEFORE, "device:cpu.model": "Core"}},
        {"environment": {**BEFORE, "env:OMP_NUM_THREADS": "1"}},
        {"environment": {k: v for k, v in BEFORE.items() if k != "device:cpu.model"}},
        {"how": RESTORED},
        {"project": "host/acme/else"},
        {"status": "failed"},
        {"status": "noisy"},
        {"status": "error", "figures": {}},
    ],
)
def test_another_environment_and_unaccepted_builds_are_no_nights(
    runs: Runs, other: dict[str, Any]
) -> None:
    runs.add(2, 1.0)
    runs.add(1, 9.0, **other)
    assert runs.found().earlier == {"latency": [1.0]}


def test_every_measurement_of_this_build_counts(runs: Runs) -> None:
    for days, status in enumerate(("passed", "noisy", "failed", "unavailable")):
        runs.add(4 - days, float(days), environment=HERE, status=status)
    runs.add(0, 9.0, environment=HERE, status="error", figures={})
    assert runs.found().recent == {"latency": [3.0, 2.0, 1.0, 0.0]}
    assert runs.found().tonight == {}


def test_the_numbers_of_nights_are_limited(runs: Runs) -> None:
    for days in range(40, 10, -1):
        runs.add(days + 5, float(days))
    for days in range(6, 0, -1):
        runs.add(days, float(days), environment=HERE)
    found = runs.found()
    assert found.recent["latency"] == [1.0, 2.0, 3.0, 4.0]  # the fifth is tonight
    assert len(found.earlier["latency"]) == 30
    assert found.earlier["latency"][0] == 11.0


def test_values_that_are_no_numbers_are_left_out(runs: Runs) -> None:
    runs.add(2, 1.0)
    for value in (None, "1.0", math.nan):
        runs.add(1, 1.0, figures={"engine": "x", "latency": value, "p99": 2.0})
    assert runs.found().earlier == {"latency": [1.0], "p99": [2.0]}


def test_a_clock_set_back_leaves_the_present_night(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.add(0, 4.0, environment=HERE)
    monkeypatch.setattr(time, "time", lambda: TODAY - 10 * DAY_S)
    assert runs.found().tonight == {"latency": [4.0]}
