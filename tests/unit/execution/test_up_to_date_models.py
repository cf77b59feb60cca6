"""Remembered up-to-date models are checked in full after any relevant change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_project
from tiny_project import BENCH, ENGINE, EXPORT, REPORT

import buildsys.execution.action_key
import buildsys.execution.up_to_date_models
from buildsys.execution.executor import Executor
from buildsys.execution.local_runs import Folders
from buildsys.execution.up_to_date_models import (
    COVERED_ELSEWHERE,
    PlannedModel,
    action_in,
    environment_of,
)
from buildsys.plan.action import Action
from buildsys.project.load import load_project
from buildsys.project.plan import plan_model
from buildsys.store.ledger import ActionRecord
from buildsys.store.object_store import Store
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
        self.wait()

    def wait(self) -> None:
        """Wait until written files are older than the clock's step."""
        time.sleep(2.5 * SETTLE_NS / 1e9)

    def executor(self) -> Executor:
        return tiny_project.make_executor(self.root)[0]

    def check(self, text: str = TEXT) -> list[str]:
        executor = self.executor()
        found = executor.models.check(
            {"m": PlannedModel(text, list(tiny_project.actions().values()))}
        )
        executor.close()
        return list(found.get("m", ()))

    def remembered(self, text: str = TEXT) -> list[str]:
        executor = self.executor()
        found = executor.models.find({"m": text})
        executor.close()
        return sorted(found.get("m", ()))

    def fresh(self) -> list[str]:
        executor = self.executor()
        return [target for target in TARGETS if executor.is_fresh(target)]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    project.build()
    yield project


def test_an_up_to_date_model_is_remembered_for_later_runs(project: Project) -> None:
    assert project.remembered() == []
    assert project.check() == TARGETS
    assert project.remembered() == sorted(TARGETS)


def test_a_stale_model_is_not_remembered(project: Project) -> None:
    (project.root / "build/m/bench/e.json").write_text("edited")
    assert project.check() == []
    assert project.remembered() == []


def _edit(path: str, keep_times: bool = False) -> Callable[[Project], None]:
    def edit(project: Project) -> None:
        file = project.root / path
        before = file.stat()
        file.write_bytes(bytes(255 - byte for byte in file.read_bytes()))  # the same size
        if keep_times:
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    return edit


def _replace(path: str) -> Callable[[Project], None]:
    def replace_file(project: Project) -> None:
        other = project.root / "other"
        other.write_text("another file")
        stat = (project.root / path).stat()
        os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        other.replace(project.root / path)

    return replace_file


def _record(statement: str) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        executor = project.executor()
        executor._db.write([(statement, ())])
        executor.close()

    return change


CHANGES = {
    "input edited": _edit("build/m/export/model.onnx"),
    "input edited, its time kept": _edit("build/m/export/model.onnx", keep_times=True),
    "output edited": _edit("build/m/report/report.json"),
    "output replaced, its time kept": _replace("build/m/bench/e.json"),
    "output deleted": lambda project: (project.root / "build/m/engine/e/engine.bin").unlink(),
    "optional output deleted": lambda project: (
        project.root / "build/m/export/model.onnx.data"
    ).unlink(),
    "source edited": lambda project: (project.root / "net.py").write_text("import blocks\ny = 1\n"),
    "imported module edited": lambda project: (project.root / "blocks.py").write_text("x = 2\n"),
    "imported module deleted": lambda project: (project.root / "blocks.py").unlink(),
    "module shadowed": lambda project: (
        (project.root / "blocks").mkdir()
        or (project.root / "blocks/__init__.py").write_text("x = 1\n")
    ),
    "record forgotten": lambda project: project.executor().ledger.forget(ENGINE),
    "verdict unreadable": _record("UPDATE settled_models SET about = '[1]'"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_change_causes_a_full_check(
    project: Project, change: Callable[[Project], None]
) -> None:
    assert project.check() == TARGETS
    assert project.remembered() == sorted(TARGETS)
    change(project)
    assert project.remembered() == []
    assert (project.check() == TARGETS) == (project.fresh() == TARGETS), "the full check decides"


def test_another_manifest_causes_a_full_check(project: Project) -> None:
    project.check()
    assert project.remembered('{"model": "m", "export": {"opset": 18}}') == []


def test_another_library_or_device_causes_a_full_check(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions = [
        replace(action, tools=("torch",), devices=("cpu",))
        for action in tiny_project.actions().values()
    ]
    executor, _ = tiny_project.make_executor(
        project.root, {action.target: action for action in actions}
    )
    for target in TARGETS:
        executor.run(target)
    project.wait()
    assert executor.models.check({"m": PlannedModel(TEXT, actions)}) == {"m": PASSED}
    assert executor.models.find({"m": TEXT})
    for function in (
        "versions.tool_versions",
        "devices.device_facts",
        "versions.environment_facts",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"buildsys.system.{function}", lambda *_: {"torch": "0.0"})
            other, _ = tiny_project.make_executor(project.root)
            assert other.models.find({"m": TEXT}) == {}, function
    assert executor.models.find({"m": TEXT})


def test_our_own_code_and_strictness_cause_a_full_check(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.check()
    with monkeypatch.context() as patch:
        patch.setenv("BUILDSYS_STRICT", "1")
        assert project.remembered() == []
    with monkeypatch.context() as patch:
        patch.setattr(
            buildsys.execution.up_to_date_models, "own_code", lambda: [str(project.root / "net.py")]
        )
        assert project.remembered() == []
    assert project.remembered() == sorted(TARGETS)


def test_a_reboot_causes_a_full_check(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.check()
    monkeypatch.setattr(buildsys.execution.up_to_date_models, "boot_id", lambda: "another boot")
    assert project.remembered() == []


def test_a_model_with_an_absent_output_is_not_up_to_date_for_doit(tmp_path: Path) -> None:
    project = Project(tmp_path)
    tiny_project.order(tmp_path, ENGINE, "unavailable")
    project.build()
    needed = {
        target: replace(action, outputs={k: replace(v, optional=False) for k, v in outputs.items()})
        for target, action in tiny_project.actions().items()
        if (outputs := action.outputs)
    }
    executor = project.executor()
    assert executor.is_fresh(ENGINE)
    assert executor.models.check({"m": PlannedModel(TEXT, list(needed.values()))}) == {}
    executor.close()


def test_a_model_with_a_very_young_file_is_not_remembered(project: Project) -> None:
    file = project.root / "build/m/bench/e.json"
    soon = time.time_ns() + 10**10
    os.utime(file, ns=(soon, soon))
    assert project.check() == TARGETS, "fresh in this run"
    assert project.remembered() == [], "checked again in the next run"


def test_a_change_during_the_check_is_checked_again(project: Project) -> None:
    executor = project.executor()
    look_up = executor._checker.up_to_date_record

    def edited_meanwhile(action: Action) -> ActionRecord | None:
        record = look_up(action)
        if action.target == REPORT:
            (project.root / "build/m/export/model.onnx").write_text("edited")
        return record

    executor._checker.up_to_date_record = edited_meanwhile  # type: ignore[method-assign]
    planned = PlannedModel(TEXT, list(tiny_project.actions().values()))
    executor.models.check({"m": planned})
    assert executor.models.find({"m": TEXT}) == {}
    executor.close()


def test_an_unavailable_target_is_up_to_date_with_that_status(project: Project) -> None:
    tiny_project.order(project.root, ENGINE, "unavailable")
    executor = project.executor()
    for target in (ENGINE, BENCH, REPORT):
        executor.run(target, force=True)
    project.wait()
    planned = PlannedModel(TEXT, list(tiny_project.actions().values()))
    statuses = {**PASSED, ENGINE: "unavailable"}
    assert executor.models.check({"m": planned}) == {"m": statuses}
    assert executor.models.find({"m": TEXT}) == {"m": statuses}


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
