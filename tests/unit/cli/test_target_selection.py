"""The targets that become tasks of doit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from cli_doubles import ScriptedExecutor, make_session

from buildsys.cli.commands.build import Requested
from buildsys.cli.session import Session
from buildsys.cli.tasks import Selection, one_model_after_another, select
from buildsys.errors import StageError
from buildsys.project.plan import model_of


def make(tmp_path: Path, *fresh: str) -> tuple[Session, ScriptedExecutor]:
    """Return a session of the models a and b; all targets of ``fresh`` ones are up to date."""
    session, executor = make_session(tmp_path, "a", "b")
    for target, action in session.actions.items():
        if action.model in fresh:
            executor.fresh.add(target)
            for output in action.outputs.values():
                path = session.project.build / output.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
    return session, executor


def selected(session: Session, *names: str, every_task: bool = False) -> Selection:
    found = select(session, Requested(names, every_task))
    assert found is not None
    return found


def of(session: Session, *models: str) -> list[str]:
    return [target for target in session.actions if model_of(target) in models]


def test_everything_is_selected_without_the_models_that_have_nothing_to_do(tmp_path: Path) -> None:
    session, _ = make(tmp_path, "a")
    assert selected(session, "build") == Selection(["build"], of(session, "b"), of(session, "a"))


def test_a_model_with_one_stale_target_is_selected_whole(tmp_path: Path) -> None:
    session, executor = make(tmp_path, "a", "b")
    executor.fresh.discard("report:b")
    assert selected(session, "build") == Selection(["build"], of(session, "b"), of(session, "a"))


def test_a_target_that_is_named_is_a_task_even_if_it_is_fresh(tmp_path: Path) -> None:
    session, executor = make(tmp_path, "a", "b")
    statuses = {name: dict.fromkeys(of(session, name), "passed") for name in ("a", "b")}
    remembered = lambda models: {name: statuses[name] for name in models}  # noqa: E731
    executor.find = remembered  # type: ignore[method-assign]
    found = selected(session, "verify:a:ort", "export")
    assert found.groups == ["export"]
    assert found.targets == ["verify:a:ort"]
    assert set(found.up_to_date) == {
        "export:a",
        "reference:a",
        "simplify:a",
        "engine:a:ort",
        "export:b",
    }


def test_a_group_comes_with_all_that_it_needs(tmp_path: Path) -> None:
    session, _ = make(tmp_path)
    found = selected(session, "engine:a")
    assert found.groups == ["engine:a"]
    assert set(found.targets) == {
        "export:a", "reference:a", "simplify:a", "engine:a:ort", "engine:a:rtx",
    }  # fmt: skip
    assert found.up_to_date == []


def test_only_named_models_are_planned_and_checked(tmp_path: Path) -> None:
    session, _ = make_session(tmp_path, "a", "b")
    asked: list[str] = []

    def remembered(models: Mapping[str, str]) -> dict[str, dict[str, str]]:
        asked.extend(models)
        return {}

    session.executor.find = remembered  # type: ignore[method-assign]
    selected(session, "build:b", "export:b")
    assert asked == ["b"]
    assert list(session.actions._planned) == ["b"]


def test_everything_is_a_task_where_doit_needs_it(tmp_path: Path) -> None:
    session, _ = make(tmp_path, "a", "b")
    assert selected(session, "build:a", every_task=True) == Selection(
        ["build:a"], of(session, "a"), []
    )


@pytest.mark.parametrize(
    "name",
    ["build:c", "engine:*", "build/a/export/model.onnx", "lst", "export:", "build:", "", ":"],
)
def test_names_that_need_all_tasks_select_nothing(tmp_path: Path, name: str) -> None:
    session, _ = make(tmp_path)
    assert select(session, Requested(("build:a", name), every_task=False)) is None


def test_a_problem_during_the_check_leaves_everything_to_the_run(tmp_path: Path) -> None:
    session, executor = make(tmp_path, "a", "b")

    def broken(models: object) -> dict[str, list[str]]:
        raise StageError("cannot use the build state")

    executor.find = broken  # type: ignore[method-assign]
    assert selected(session, "build") == Selection(["build"], of(session, "a", "b"), [])


def test_models_are_built_one_after_another(tmp_path: Path) -> None:
    session, _ = make(tmp_path)
    selection = selected(session, "build", "verify:a:ort")
    names = one_model_after_another(["build", "verify:a:ort"], selection)
    assert names == ["build:a", "build:b", "verify:a:ort"]
    assert selection.groups == ["build", "build:a", "build:b"]


def test_other_names_keep_their_order(tmp_path: Path) -> None:
    session, _ = make(tmp_path, "a", "b")
    assert one_model_after_another(["build"], selected(session, "build")) == ["build"]
    names = ["build:b", "export"]
    assert one_model_after_another(names, selected(session, *names)) == names
