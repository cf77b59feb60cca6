"""The targets that become tasks of doit."""

from collections.abc import Mapping
from pathlib import Path

from cli_doubles import Doit, ScriptedExecutor, make_session

from buildsys.cli.session import BuildSession
from buildsys.cli.tasks import ProjectTasks
from buildsys.project.plan import model_of


def make(tmp_path: Path, *fresh: str) -> tuple[BuildSession, ScriptedExecutor]:
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


def chosen(session: BuildSession, *names: str, single: bool = False) -> tuple[set[str], set[str]]:
    """Choose names; return their targets, and those that are no tasks as they are up to date."""
    tasks = ProjectTasks(session)
    tasks.choose_run(names, single=single)
    made = {
        task["basename"] if task.get("name") is None else f"{task['basename']}:{task['name']}"
        for task in tasks.create_doit_tasks()
    }
    assert made >= {*names}
    made &= session.actions.keys()
    return made, set(session.up_to_date_targets)


def of(session: BuildSession, *models: str) -> set[str]:
    return {target for target in session.actions if model_of(target) in models}


def test_everything_is_chosen_without_the_models_that_have_nothing_to_do(tmp_path: Path) -> None:
    session, _ = make(tmp_path, "a")
    assert chosen(session, "build") == (of(session, "b"), of(session, "a"))


def test_a_model_with_one_stale_target_is_chosen_whole(tmp_path: Path) -> None:
    session, executor = make(tmp_path, "a", "b")
    executor.fresh.discard("report:b")
    assert chosen(session, "build:b") == (of(session, "b"), set())


def test_a_target_that_is_named_is_a_task_even_if_it_is_fresh(tmp_path: Path) -> None:
    session, _ = make(tmp_path, "a", "b")
    needed = {"export:a", "reference:a", "simplify:a", "engine:a:ort", "verify:a:ort"}
    assert chosen(session, "verify:a:ort") == (needed, set())
    assert chosen(session, "verify:a:ort", single=True) == ({"verify:a:ort"}, set())
    assert chosen(session, "export") == ({"export:a", "export:b"}, set())


def test_only_named_models_are_planned_and_checked(tmp_path: Path) -> None:
    session, _ = make_session(tmp_path, "a", "b")
    asked: list[str] = []

    def remembered(models: Mapping[str, str]) -> dict[str, dict[str, str]]:
        asked.extend(models)
        return {}

    session.executor.find = remembered  # type: ignore[method-assign]
    ProjectTasks(session).choose_run(("build:b", "export:b"))
    assert asked == ["b"]
    assert list(session.actions._planned) == ["b"]


def test_models_are_built_one_after_another(doit: Doit) -> None:
    doit.models = ("a", "b", "c", "d", "e", "f")
    for arguments in (("-n", "2"), ("build", "-j", "2")):
        run = doit.run_buildsys if arguments[:1] == ("build",) else doit.run_doit
        assert run(*arguments)[0] == 0
        targets = list(doit.session.finished)
        assert targets.index("report:a") < targets.index("export:f")
