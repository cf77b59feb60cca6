"""Remembered up-to-date models are checked in full after any relevant change."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_project
from tiny_project import BENCH, ENGINE, EXPORT, REPORT

from buildsys.execution import up_to_date_models
from buildsys.execution.executor import Executor
from buildsys.execution.freshness import FreshnessChecker
from buildsys.execution.local_runs import Folders
from buildsys.execution.up_to_date_models import COVERED_ELSEWHERE, action_in, environment_of
from buildsys.plan.action import Action
from buildsys.project.load import load_project
from buildsys.project.plan import plan_model
from buildsys.store.ledger import ActionRecord
from buildsys.store.object_store import Store
from buildsys.system import devices, versions
from buildsys.system.files import SETTLE_NS

TARGETS = [EXPORT, ENGINE, BENCH, REPORT]
PASSED = dict.fromkeys(TARGETS, "passed")
TEXT = '{"model": "m"}'
# kinds of key parts covered by the manifest, by stamps of files and by our own code
KINDS_ELSEWHERE = {"config", "inputs", "outputs", "input", "code"}


class Project:
    """A tiny project; every call is a new process's view of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "net.py").write_text("import blocks\n")
        (root / "blocks.py").write_text("x = 1\n")
        (root / "do-export:m").write_text("external")

    def build(self) -> None:
        tiny_project.build(self.root)
        time.sleep(2.5 * SETTLE_NS / 1e9)  # until written files are older than the clock's step

    def executor(self) -> Executor:
        return tiny_project.make_executor(self.root)[0]

    def check(self, actions: Iterable[Action] | None = None) -> dict[str, str]:
        """Check the model in full; return its up-to-date targets with their status."""
        planned = (TEXT, list(actions or tiny_project.actions().values()))
        executor = self.executor()
        statuses = executor.models.check({"m": planned})
        executor.close()
        return statuses.get("m", {})

    def remembered(self, text: str = TEXT) -> dict[str, str]:
        executor = self.executor()
        statuses = executor.models.find({"m": text})
        executor.close()
        return statuses.get("m", {})


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.build()
    return project


def test_an_up_to_date_model_is_remembered_for_later_runs(project: Project) -> None:
    assert project.remembered() == {}
    assert project.check() == PASSED
    assert project.remembered() == PASSED
    assert project.remembered('{"model": "m", "export": {"opset": 18}}') == {}, "it was edited"


def test_an_unavailable_target_is_up_to_date_with_that_status(project: Project) -> None:
    tiny_project.order(project.root, ENGINE, "unavailable")
    project.build()
    executor = project.executor()
    executor.run(ENGINE, force=True)
    executor.close()
    project.build()
    assert project.check() == {**PASSED, ENGINE: "unavailable"}
    assert project.remembered() == {**PASSED, ENGINE: "unavailable"}
    all_required = [
        replace(action, outputs={r: replace(ref, optional=False) for r, ref in outputs.items()})
        for action in tiny_project.actions().values()
        if (outputs := action.outputs)
    ]
    assert project.check(all_required) == {}, "doit runs a target without its files"


def _edit(project: Project) -> None:
    file = project.root / "build/m/export/model.onnx"
    before = file.stat()
    file.write_bytes(bytes(255 - byte for byte in file.read_bytes()))  # the same size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace(project: Project) -> None:
    file, other = project.root / "build/m/bench/e.json", project.root / "other"
    other.write_text("another file")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)


def _damage(project: Project) -> None:
    executor = project.executor()
    executor._db.write([("UPDATE settled_models SET about = '[1]'", ())])
    executor.close()


CHANGES: dict[str, Callable[[Project], Any]] = {
    "input edited, its time kept": _edit,
    "output replaced, its time kept": _replace,
    "output deleted": lambda project: (project.root / "build/m/engine/e/engine.bin").unlink(),
    "optional output deleted": lambda project: (
        project.root / "build/m/export/model.onnx.data"
    ).unlink(),
    "imported module edited": lambda project: (project.root / "blocks.py").write_text("x = 2\n"),
    "record forgotten": lambda project: project.executor().ledger.forget(ENGINE),
    "verdict unreadable": _damage,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_change_causes_a_full_check(
    project: Project, change: Callable[[Project], Any]
) -> None:
    project.check()
    change(project)
    assert project.remembered() == {}
    executor = project.executor()
    is_fresh = all(map(executor.up_to_date_status, TARGETS))
    assert project.check() == (PASSED if is_fresh else {})


def test_another_library_or_device_causes_a_full_check(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions = [
        replace(action, tools=("torch",), devices=("cpu",))
        for action in tiny_project.actions().values()
    ]
    executor, _ = tiny_project.make_executor(project.root, {a.target: a for a in actions})
    for target in TARGETS:
        executor.run(target)
    time.sleep(2.5 * SETTLE_NS / 1e9)
    assert project.check(actions) == PASSED
    for function in ("tool_versions", "environment_facts"):
        with monkeypatch.context() as patch:
            patch.setattr(versions, function, lambda *_: {"torch": "0.0"})
            assert project.remembered() == {}, function
    with monkeypatch.context() as patch:
        patch.setattr(devices, "device_facts", lambda *_: {"cpu": "other"})
        assert project.remembered() == {}
    assert project.remembered() == PASSED


def test_our_own_code_strictness_and_a_reboot_cause_a_full_check(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.check()
    with monkeypatch.context() as patch:
        patch.setenv("BUILDSYS_STRICT", "1")
        assert project.remembered() == {}
    with monkeypatch.context() as patch:
        patch.setattr(up_to_date_models, "own_code", lambda: [str(project.root / "net.py")])
        assert project.remembered() == {}
    assert project.remembered() == PASSED
    monkeypatch.setattr(up_to_date_models, "boot_id", lambda: "another boot")
    assert project.remembered() == {}


def test_a_model_with_a_very_young_file_is_not_remembered(project: Project) -> None:
    file = project.root / "build/m/bench/e.json"
    soon = time.time_ns() + 10**10
    os.utime(file, ns=(soon, soon))
    assert project.check() == PASSED, "fresh in this run"
    assert project.remembered() == {}, "checked again in the next run"


def test_a_change_during_the_check_is_checked_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = FreshnessChecker.up_to_date_record

    def edited_meanwhile(checker: FreshnessChecker, action: Action) -> ActionRecord | None:
        record = look_up(checker, action)
        if action.target == REPORT:
            (project.root / "build/m/export/model.onnx").write_text("edited")
        return record

    monkeypatch.setattr(FreshnessChecker, "up_to_date_record", edited_meanwhile)
    project.check()
    assert project.remembered() == {}


def test_the_fields_covered_elsewhere_exist() -> None:
    assert {field.name for field in fields(Action)} > COVERED_ELSEWHERE


def test_every_part_of_a_key_is_covered(tmp_path: Path) -> None:
    project = load_project(Path(__file__).parents[3])
    actions = [action for model in project.models.values() for action in plan_model(model.data)]
    executor = Executor(  # nothing is run
        Folders(project.root, tmp_path, tmp_path),
        {},
        pool=SimpleNamespace(),  # type: ignore[arg-type]
        store=Store(tmp_path / "store"),
    )
    assert actions
    for action in actions:
        parts = executor._keys.build(action).parts.items()
        seen = executor._keys.build(*action_in(environment_of(action))).parts.items()
        assert {
            label for label, _ in parts - seen if label.partition(":")[0] not in KINDS_ELSEWHERE
        } == set()
