from __future__ import annotations

import time
from pathlib import Path

import pytest
from cli_doubles import make_session

from buildsys.cli.console.estimate import Estimate, Remaining, default_s
from buildsys.cli.console.target_line import ConsoleLine
from buildsys.execution.freshness import FRESH, STALE, Explanation


class Project:
    """Two models whose targets have the usual times of ``usual``."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session, executor = make_session(root, "a", "b")
        self.lines = {
            target: ConsoleLine(target, action.model, action.stage, action.variant)
            for target, action in self.session.actions.items()
        }
        self.usual: dict[str, float] = {}
        self.fresh: set[str] = set()
        self.restorable: set[str] = set()
        monkeypatch.setattr(executor, "forecast", self.forecast)
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def forecast(self, targets: list[str]) -> dict[str, Explanation]:
        return {
            one: Explanation(
                one,
                FRESH if one in self.fresh else STALE,
                (),
                None,
                self.usual.get(one),
                one in self.restorable,
            )
            for one in targets
        }

    def remaining(self, jobs: int = 1) -> Remaining:
        estimate = Estimate(self.session, self.lines, jobs)
        assert estimate.remaining() is None, "nothing is known yet"
        estimate.learn()
        found = estimate.remaining()
        assert found is not None
        return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


def test_the_time_left_is_the_usual_time_of_what_will_run(project: Project) -> None:
    project.usual = dict.fromkeys(project.lines, 10.0)
    project.fresh = set(project.lines) - {"engine:a:ort", "bench:a:ort", "report:a"}
    project.restorable = {"report:a"}
    found = project.remaining()
    assert found.seconds == pytest.approx(20, abs=1)
    assert str(found) == "about 20 s left"


def test_what_has_ended_counts_nothing_and_what_runs_its_rest(project: Project) -> None:
    project.usual = dict.fromkeys(project.lines, 100.0)
    project.fresh = set(project.lines) - {"export:a", "reference:a", "simplify:a"}
    project.lines["export:a"].status = "passed"
    project.lines["reference:a"].status, project.lines["reference:a"].began = "running", 970.0
    assert project.remaining().seconds == pytest.approx(170, abs=1)
    project.now += 500
    project.lines["reference:a"].began = 970.0
    assert project.remaining().seconds == pytest.approx(110, abs=1), "it takes longer than usual"


def test_several_jobs_share_everything_except_benchmarks(project: Project) -> None:
    project.usual = dict.fromkeys(project.lines, 10.0)
    project.fresh = {one for one in project.lines if not one.startswith(("bench:", "export:"))}
    benches = [one for one in project.lines if project.session.actions[one].exclusive]
    expected = 10.0 * len(benches)
    others = 10.0 * (len(project.lines) - len(project.fresh) - len(benches))
    found = project.remaining(jobs=2)
    assert found.seconds == pytest.approx(expected + others / 2, abs=1.5)


def test_a_chain_is_not_shared(project: Project) -> None:
    project.usual = dict.fromkeys(project.lines, 10.0)
    project.fresh = set(project.lines) - {"export:a", "simplify:a"}
    assert project.remaining(jobs=8).seconds == pytest.approx(20, abs=1)


def test_a_first_build_has_an_order_of_magnitude(project: Project) -> None:
    found = project.remaining()
    actions = project.session.actions.values()
    assert found.seconds > sum(map(default_s, actions))
    assert str(found).startswith("~")
    assert str(found).endswith("left, first build")


def test_a_first_build_that_takes_longer_has_more_left(project: Project) -> None:
    project.fresh = set(project.lines) - {"export:a"}
    usual_s = project.remaining().seconds
    line = project.lines["export:a"]
    line.status, line.began = "running", project.now - 30 * usual_s
    assert project.remaining().seconds == pytest.approx(29 * usual_s)


def test_a_new_model_takes_the_times_of_the_others(project: Project) -> None:
    project.usual = {one: 40.0 for one in project.lines if ":a" in one}
    project.fresh = {one for one in project.lines if one != "engine:b:ort"}
    found = project.remaining()
    assert found.seconds == pytest.approx(40, abs=1)
    assert str(found) == "~30 s left, first build"


def test_always_runs_what_is_up_to_date(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.session.always = True
    project.usual = dict.fromkeys(project.lines, 10.0)
    project.fresh = set(project.lines)
    assert project.remaining().seconds >= 10 * len(project.lines)


def test_a_broken_state_gives_no_time(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(project.session.executor, "forecast", broken)
    assert project.remaining().seconds == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.2, "2 s"),
        (33, "35 s"),
        (58, "1 min"),
        (83, "1 min 20 s"),
        (118, "2 min"),
        (200, "3 min"),
        (3600 * 2.5, "2 h 30 min"),
    ],
)
def test_estimates_are_rounded(seconds: float, text: str) -> None:
    assert str(Remaining(seconds)) == f"about {text} left"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "1 s"), (21, "30 s"), (290, "3 min"), (500, "10 min"), (9e9, "10 h 0 min")],
)
def test_orders_of_magnitude(seconds: float, text: str) -> None:
    assert str(Remaining(seconds, is_rough=True)) == f"~{text} left, first build"
