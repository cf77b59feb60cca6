from __future__ import annotations

import time
from pathlib import Path

import pytest
from cli_doubles import make_session

from buildsys.cli.console.lines import target_line
from buildsys.cli.console.progress import Estimate
from buildsys.execution.freshness import FRESH, STALE, Explanation


class Project:
    """A model whose targets have the usual times of ``usual``."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session, self.executor = make_session(root)
        self.lines = {target: target_line(target) for target in self.session.actions}
        self.usual: dict[str, float] = dict.fromkeys(self.lines, 100.0)
        self.stale = {"export:net", "reference:net", "simplify:net"}
        self.restorable: set[str] = set()
        monkeypatch.setattr(self.executor, "forecast", self.forecast)
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def forecast(self, targets: list[str]) -> dict[str, Explanation]:
        return {
            target: Explanation(
                target,
                STALE if target in self.stale else FRESH,
                (),
                None,
                self.usual.get(target),
                target in self.restorable,
            )
            for target in targets
        }

    def left(self, jobs: int = 1) -> str:
        self.session.jobs = jobs
        return str(Estimate(self.session, self.lines))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


def test_the_time_left_is_the_usual_time_of_what_will_run(project: Project) -> None:
    assert project.left() == "about 5 min left"
    assert project.left(jobs=2) == "about 2 min left"
    project.restorable = {"export:net", "reference:net"}
    assert project.left() == "about 2 min left"
    project.session.always = True
    assert project.left() == f"about {round(100 * (len(project.lines) - 2) / 60)} min left"


def test_what_has_ended_counts_nothing_and_what_runs_its_rest(project: Project) -> None:
    project.lines["export:net"].status = "passed"
    reference = project.lines["reference:net"]
    reference.status, reference.began = "running", 970.0
    project.usual["simplify:net"] = 20.0
    assert project.left() == "about 2 min left"
    project.now += 500
    assert project.left() == "about 30 s left", "it takes longer than usual"


def test_a_first_build_takes_the_default_times_of_its_stages(project: Project) -> None:
    project.usual = {}
    assert project.left() == "~13 s left, first build"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.2, "2 s"), (58, "58 s"), (83, "1 min"), (200, "3 min"), (3600 * 2.5, "2 h 30 min")],
)
def test_estimates_are_rounded(project: Project, seconds: float, text: str) -> None:
    project.stale, project.usual = {"export:net"}, {"export:net": seconds}
    assert project.left() == f"about {text} left"
