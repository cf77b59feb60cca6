"""Baselines that cannot run any more, and those pinned to a git revision."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_project
from tiny_project import ENGINE, EXPORT, actions, make_executor, make_project

from buildsys.execution import baselines
from buildsys.history.database import History
from buildsys.history.recorder import Checkout, Recorder
from buildsys.manifest.schema.model import ModelSpec
from buildsys.plan.action import Action, BaselineRef, FileRef
from buildsys.store.ledger import Ledger
from buildsys.store.state_db import StateDb
from buildsys.system import versions
from buildsys.workers.job import Job

GATE, VERIFY = "gate:m:e", "verify:m:e"
MANIFEST = ModelSpec.model_validate(
    {
        "model": "m",
        "source": {"python": "net.py:make"},
        "inputs": {"x": {"shape": [1, 4]}},
        "engines": [{"backend": "onnxruntime", "name": "e", "intra_op_threads": 3}],
    }
).model_dump_json(by_alias=True)


class Project:
    """A git repository with the tiny project; each build records its commit."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.manifest = root, MANIFEST
        self.seen: list[dict[str, Any]] = []  # the baseline of each gate that ran
        self.git("init", "-q")
        (root / ".gitignore").write_text("build\n.buildsys\nruns.txt\n")
        monkeypatch.setitem(tiny_project.STAGES, "gate", self._gate)
        monkeypatch.setitem(tiny_project.STAGES, "verify", lambda _: {"cases": {}})

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        command = ["git", *identity, "-C", str(self.root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, tag: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", tag, "--allow-empty")
        self.git("tag", tag)
        return self.git("rev-parse", "HEAD")

    def _gate(self, job: Job) -> dict[str, Any]:
        given = dict(job.baseline or {})
        earlier = job.inputs.get("baseline.engine")
        self.seen.append({**given, "content": earlier and earlier.read_text()})
        size = float(len(job.inputs["engine"].read_text()))
        return {"engine": given["current"], "figures": {"latency": 2.0, "size": size}}

    def build(
        self,
        opset: int,
        revision: str = "",
        *,
        dirty: bool = False,
        keys_at: Any = None,
        plan: dict[str, Action] | None = None,
    ) -> list[str]:
        """Build with another opset; return the targets that ran."""

        def recorder() -> Recorder:
            history = History(self.root / ".buildsys/history.db")
            commit = self.git("rev-parse", "HEAD")
            return Recorder(history, lambda: Checkout("", commit, dirty), lambda _: self.manifest)

        plan = plan or graph(opset, revision)
        options = {"keys_at": keys_at} if keys_at else {}
        executor, pool = make_executor(self.root, plan, make_recorder=recorder, **options)
        for target in plan:
            if not executor.is_fresh(target):
                executor.run(target)
        executor.close()
        return pool.ran

    def build_engine(self, opset: int) -> None:
        """Build without a gate, as before it was added to the manifest."""
        plan = graph(opset, "")
        del plan[GATE]
        self.build(opset, plan=plan)


def graph(opset: int, revision: str) -> dict[str, Action]:
    found = actions(opset=opset)
    engine = found[ENGINE].outputs["engine"]
    gate = Action(
        target=GATE,
        stage="gate",
        model="m",
        variant="e",
        options={"tolerance": 0.05, **({"revision": revision} if revision else {})},
        inputs={"engine": engine},
        outputs={"result": FileRef("m/gate/e.json")},
        after=(ENGINE,),
        tools=("numpy",),
        environment=("speed",),
        baseline=BaselineRef(engine.path, ENGINE, revision),
        measures=True,
    )
    return {EXPORT: found[EXPORT], ENGINE: found[ENGINE], GATE: gate}


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
    project.commit("v1")
    project.build(17)
    set_numpy("2")
    assert project.build(17) == [GATE]
    first, second = project.seen
    assert first["missing"] == "there is no earlier build"
    assert first["hint"] == "the next build is compared with this one"
    assert second["reason"] == "numpy changed since the baseline was built"
    assert second["nights"]["earlier"]["latency"] == [2.0]
    assert second["nights"]["tonight"] == {}
    assert project.build(17) == []  # it stays compared
    set_numpy("1")
    assert project.build(17) == []  # restored


def test_another_version_implies_other_files(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit("v1")
    for version in ("1", "2"):
        tools = {"numpy": version, "numpy (files)": version * 64}
        monkeypatch.setattr(versions, "tool_versions", lambda *_, found=tools: found)
        project.build(17)
    assert project.seen[-1]["reason"] == "numpy changed since the baseline was built"


@pytest.mark.parametrize("has_store", [True, False])
def test_a_clean_checkout_finds_its_baseline_in_the_history(
    project: Project, has_store: bool
) -> None:
    project.commit("v1")
    project.build(17)
    delete_state(project, but=("history", *(["store"] if has_store else [])))
    assert GATE in project.build(18)
    found = project.seen[-1]
    assert re.match(r"the build of 20\d\d-\d\d-\d\d \d\d:\d\d UTC \(", found["description"])
    if has_store:
        assert "opset 17" in found["content"]
        assert found["options"]["intra_op_threads"] == 3
    else:
        assert found["reason"] == "the store no longer has the baseline"
        assert found["nights"]["earlier"]["latency"] == [2.0]
    assert project.build(18) == []
    Ledger(StateDb(project.root / ".buildsys/state.db")).forget(GATE)  # also without its records
    assert project.build(18) == [GATE]
    assert project.seen[-1]["identity"] == found["identity"]


def test_a_clean_checkout_names_the_other_environment_of_earlier_builds(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit("v1")
    project.build(17)
    delete_state(project, but=("history",))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    project.build(18)
    problem = "earlier builds ran in another environment (OMP_NUM_THREADS changed)"
    assert project.seen[-1]["missing"] == problem


def delete_state(project: Project, but: tuple[str, ...]) -> None:
    shutil.rmtree(project.root / "build")
    for path in (project.root / ".buildsys").iterdir():
        if path.name.startswith(but):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def test_a_pinned_revision_is_the_baseline_of_all_later_builds(project: Project) -> None:
    project.commit("v1")
    project.build_engine(17)
    for opset in (18, 19):
        project.commit(f"opset-{opset}")
        assert project.build(opset, "v1") == [EXPORT, ENGINE, GATE]
        found = project.seen[-1]
        assert "opset 17" in found["content"]
        assert found["description"].startswith("the build of 20")
        assert "(v1, engine " in found["description"]
        assert found["options"]["intra_op_threads"] == 3  # as it was then
        assert found["reason"] == ""
        assert project.build(opset, "v1") == []
    project.commit("back")
    assert project.build(17, "v1") == [EXPORT, ENGINE, GATE][2:]  # the engine is restored
    assert "opset 17" in project.seen[-1]["content"]


@pytest.mark.parametrize(
    ("revision", "problem", "hint"),
    [
        ("v9", "git knows no revision v9", "correct `gates.revision`"),
        ("--all", "git knows no revision --all", "correct `gates.revision`"),
        ("v1", "the history has no build of revision v1", "`git switch --detach v1` and `doit -a"),
        (
            "v2",
            "the history has no build of revision v2 without uncommitted changes",
            "`git switch --detach v2` and `doit -a engine:m:e` build it",
        ),
    ],
)
def test_a_revision_without_a_build_is_named_with_the_next_step(
    project: Project, revision: str, problem: str, hint: str
) -> None:
    project.commit("v1")
    project.commit("v2")
    project.build(17, dirty=True)
    project.commit("v3")
    project.build(18, revision)
    assert project.seen[-1]["missing"] == problem
    assert project.seen[-1]["hint"].startswith(hint)
    assert project.seen[-1]["content"] is None


def test_an_unreadable_history_is_one_warning(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.commit("v1")
    project.build(17, "v1")
    with sqlite3.connect(project.root / ".buildsys/history.db") as history:
        history.execute("PRAGMA user_version = 99")
    history.close()
    project.build(18, "v1")
    warned = [line for line in capsys.readouterr().err.splitlines() if "cannot be read" in line]
    assert len(warned) == 1
    assert "a newer buildsys wrote it" in warned[0]


def test_a_revision_needs_a_repository_and_git(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit("v1")
    monkeypatch.setattr(baselines, "run_git", failing(128, b"fatal: not a git repository"))
    project.build(17, "v1")
    assert project.seen[-1]["missing"] == "revision v1 needs a git repository"
    monkeypatch.setattr(baselines, "run_git", missing_git)
    project.build(18, "v1")
    assert project.seen[-1]["missing"] == "revision v1 needs git, which is not installed"


def failing(code: int, text: bytes) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    return lambda *_: subprocess.CompletedProcess((), code, b"", text)


def missing_git(*_: object) -> subprocess.CompletedProcess[bytes]:
    raise FileNotFoundError("git")


def test_a_revision_that_is_built_later_becomes_the_baseline(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tiny_project.STAGES, "gate", unavailable_without_baseline(project))
    project.commit("v1")
    project.commit("v2")
    project.build(18, "v1")
    assert "missing" in project.seen[-1]
    assert project.build(18, "v1") == []
    project.git("checkout", "-q", "--detach", "v1")
    project.build(17, "v1")
    project.git("checkout", "-q", "--detach", "v2")
    assert GATE in project.build(18, "v1")
    assert "opset 17" in project.seen[-1]["content"]


def unavailable_without_baseline(project: Project) -> Callable[[Job], dict[str, Any]]:
    def gate(job: Job) -> dict[str, Any]:
        order = project.root / f"do-{GATE}"
        order.unlink(missing_ok=True)
        if "missing" in (job.baseline or {}):
            order.write_text("unavailable")
        return project._gate(job)

    return gate


def test_a_revision_that_was_up_to_date_is_the_build_with_its_inputs(project: Project) -> None:
    """`doit` at a tag that changes no input builds nothing there."""
    project.commit("built")
    project.build(17)
    project.commit("v1")
    assert project.build(17) == []
    project.commit("v2")
    asked = []

    def keys_at(revision: str, target: str) -> frozenset[str]:
        asked.append((revision, target))
        builds = History(project.root / ".buildsys/history.db").builds(target=ENGINE)
        return frozenset(build.key for build in builds[-1:])

    project.build(18, "v1", keys_at=keys_at)
    assert asked == [("v1", ENGINE)]  # once
    assert "opset 17" in project.seen[-1]["content"]


def test_a_revision_of_another_environment_is_not_comparable(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit("v1")
    found = graph(17, "")
    engine = replace(found[ENGINE], environment=("speed",))
    project.build(17, plan={EXPORT: found[EXPORT], ENGINE: engine})
    project.commit("v2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    later = graph(18, "v1")
    project.build(18, plan={**later, ENGINE: replace(later[ENGINE], environment=("speed",))})
    assert project.seen[-1]["missing"] == "OMP_NUM_THREADS changed since v1 was built"
    assert project.seen[-1]["content"] is None
    assert "figures" not in project.seen[-1]  # not even its size


def test_options_that_cannot_be_read_are_no_guess(project: Project) -> None:
    project.commit("v1")
    project.manifest = '{"engines": []}'
    project.build_engine(17)
    project.manifest = MANIFEST
    project.commit("v2")
    project.build(18, "v1")
    assert project.seen[-1]["reason"] == "the options of v1 cannot be read"
    assert project.seen[-1]["content"] is None


def test_a_hook_of_git_does_not_change_the_repository(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit("v1")
    project.build(17)
    project.commit("v2")
    monkeypatch.setenv("GIT_DIR", os.devnull)
    monkeypatch.setattr(project, "git", lambda *_: "")
    project.build(18, "v1")
    assert "opset 17" in project.seen[-1]["content"]


def test_the_result_is_kept_for_other_builds(project: Project) -> None:
    project.commit("v1")
    project.build(17)
    (found,) = History(project.root / ".buildsys/history.db").builds(target=GATE)
    result = json.loads((project.root / "build/m/gate/e.json").read_text())
    assert found.figures["engine"] == result["engine"]
    assert found.figures["latency"] == 2.0
