"""Baselines of a clean checkout, from the history, and those with other libraries."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_project
from tiny_project import GATE, gated_actions, make_executor, make_project

from buildsys.history.database import History
from buildsys.history.recorder import HistoryRecorder, PastBuilds
from buildsys.plan.action import Action
from buildsys.store.ledger import Ledger
from buildsys.store.state_db import StateDb
from buildsys.system import versions
from buildsys.system.git import Checkout
from buildsys.workers.job import Job


class Project:
    """The tiny project with a gate and a history."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.options: dict[str, Any] = {"intra_op_threads": 3}
        self.seen: list[dict[str, Any]] = []  # the baseline of each gate that ran
        monkeypatch.setitem(tiny_project.STAGES, "gate", self._gate)

    def _gate(self, job: Job) -> dict[str, Any]:
        baseline = dict(job.baseline or {})
        earlier = job.inputs.get("baseline.engine")
        self.seen.append({**baseline, "content": earlier and earlier.read_text()})
        figures = {"latency": 2.0, "size": float(len(job.inputs["engine"].read_text()))}
        return {
            "engine": baseline["current"],
            "figures": figures,
            "engine_options": self.options,
        }

    def build(self, opset: int) -> list[str]:
        """Build with another opset; return the targets that ran."""

        def recorder() -> HistoryRecorder:
            history = History(self.root / ".buildsys/history.db")
            return HistoryRecorder(
                history, lambda: Checkout("host/a", "c0ffee", False), lambda _: "{}"
            )

        plan = graph(opset)
        executor, pool = make_executor(
            self.root,
            plan,
            make_recorder=recorder,
            past_builds=PastBuilds(self.root / ".buildsys").of_gate,
        )
        for target in plan:
            if not executor.is_fresh(target):
                executor.run(target)
        executor.close()
        return pool.ran

    def delete_state(self, *but: str) -> None:
        shutil.rmtree(self.root / "build")
        for path in (self.root / ".buildsys").iterdir():
            if path.name.startswith(but):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def graph(opset: int) -> dict[str, Action]:
    return gated_actions(opset, {}, tools=("numpy",), environment=("speed",))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("BUILDSYS_MACHINE_LOCK", str(tmp_path / "machine"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return Project(make_project(tmp_path / "project"), monkeypatch)


@pytest.fixture
def set_numpy(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def set_version(version: str) -> None:
        monkeypatch.setattr(
            versions, "tool_versions", lambda names, *_: dict.fromkeys(names, version)
        )

    set_version("1")
    return set_version


def test_other_libraries_make_another_build_of_the_same_engine(
    project: Project, set_numpy: Callable[[str], None]
) -> None:
    project.build(17)
    set_numpy("2")
    assert project.build(17) == [GATE]
    first, second = project.seen
    assert first["missing"] == "there is no earlier build"
    assert first["hint"] == "the next build is compared with this one"
    assert second["reason"] == "numpy changed since the baseline was built"
    assert second["figures"]["latency"] == 2.0
    assert project.build(17) == []  # it stays compared
    set_numpy("1")
    assert project.build(17) == []  # restored


@pytest.mark.parametrize("has_store", [True, False])
def test_a_clean_checkout_finds_its_baseline_in_the_history(
    project: Project, has_store: bool
) -> None:
    project.build(17)
    project.delete_state("history", *(["store"] if has_store else []))
    assert GATE in project.build(18)
    found = project.seen[-1]
    assert re.match(r"the build of 20\d\d-\d\d-\d\d \d\d:\d\d UTC \(", found["description"])
    assert found["options"] == {"intra_op_threads": 3}  # as it ran then
    assert found["figures"]["latency"] == 2.0
    if has_store:
        assert "opset 17" in found["content"]
    else:
        assert found["reason"] == "the store no longer has the baseline"
    assert project.build(18) == []
    Ledger(StateDb(project.root / ".buildsys/state.db")).forget(GATE)  # also without its records
    assert project.build(18) == [GATE]
    assert project.seen[-1]["identity"] == found["identity"]


def test_a_rejected_build_in_the_history_is_no_baseline(project: Project) -> None:
    project.build(17)
    (project.root / f"do-{GATE}").write_text("noise")
    project.build(18)
    project.delete_state("history", "store")
    (project.root / f"do-{GATE}").unlink()
    project.build(19)
    assert "opset 17" in project.seen[-1]["content"]


def test_options_that_are_not_known_are_no_guess(project: Project) -> None:
    project.options = {}  # as in the history of an earlier version
    project.build(17)
    project.delete_state("history", "store")
    project.build(18)
    assert project.seen[-1]["reason"] == "the options of the baseline are not known"
    assert project.seen[-1]["content"] is None


def test_a_clean_checkout_names_the_other_environment_of_earlier_builds(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.build(17)
    project.delete_state("history")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    project.build(18)
    problem = "earlier builds ran in another environment (OMP_NUM_THREADS changed)"
    assert project.seen[-1]["missing"] == problem


def test_an_unreadable_history_is_one_warning(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.build(17)
    project.delete_state("history")
    with sqlite3.connect(project.root / ".buildsys/history.db") as history:
        history.execute("PRAGMA user_version = 99")
    history.close()
    project.build(18)
    warned = [line for line in capsys.readouterr().err.splitlines() if "cannot be read" in line]
    assert len(warned) == 1
    assert "a newer buildsys wrote it" in warned[0]
