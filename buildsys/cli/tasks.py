"""The border to doit: tasks and configuration; its commands are in ``doit_commands`` and ``command_line``.

doit schedules and is the command line; whether a target is up to date is asked of our executor alone.
Tasks therefore have no ``file_dep`` and one ``uptodate`` callable, and doit's own database holds nothing
that matters but what ``doit ignore`` marks.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from doit import Globals
from doit.exceptions import InvalidDodoFile, TaskError, TaskFailed
from doit.task import Task

from buildsys.cli.clean import remove_target_files
from buildsys.cli.console.reporter import Reporter
from buildsys.cli.doit_database import write_at_the_end
from buildsys.cli.doit_overrides import Run
from buildsys.cli.session import Session
from buildsys.cli.target_selection import select
from buildsys.errors import BuildsysError, CheckFailed, ManifestErrors
from buildsys.manifest.project import load_project

_STAGE_DOCS = {
    "build": "everything of every model (the default)",
    "operators": "make functions and libraries of custom operators",
    "export": "export to ONNX",
    "reference": "golden inputs and outputs of the original model",
    "surgery": "change graphs by the steps of their manifests",
    "simplify": "simplify the exported graphs",
    "calibrate": "measure the ranges that int8 and fp8 need",
    "convert": "convert graphs to other precisions",
    "validate": "check the graphs in ONNX Runtime against the original model",
    "engine": "build the engines",
    "verify": "check the engines against the golden outputs",
    "bench": "benchmark the engines",
    "report": "write the reports",
}


def load(root: Path) -> tuple[dict[str, Any], Callable[[], Iterator[Task]]]:
    """Load the project at ``root``; return what its dodo file names DOIT_CONFIG and its task creator.

    Raises: InvalidDodoFile: something is wrong with the manifests; doit prints it and exits with 3.
    """
    try:
        with _uncollected():
            session = Session(load_project(root))
        session.project.state.mkdir(parents=True, exist_ok=True)
    except ManifestErrors as error:
        count = len(error.errors)
        raise InvalidDodoFile(
            f"{count} error{'s' * (count != 1)} in the manifests\n{error}"
        ) from None
    except (BuildsysError, OSError) as error:
        raise InvalidDodoFile(str(error)) from None
    return offer(session)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage while modules and manifests are loaded, nor ever among them: that is 60 ms of a run."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def offer(session: Session) -> tuple[dict[str, Any], Callable[[], Iterator[Task]]]:
    """Return doit's configuration and the task creator for a loaded project."""

    def create_tasks() -> Iterator[Task]:
        """Build inference engines from model manifests."""
        _forget_with_doit(session)
        yield from _selected_tasks(session) or _all_tasks(session)

    return _config(session), create_tasks


def _config(session: Session) -> dict[str, Any]:
    return {
        "default_tasks": ["build"],
        "par_type": "thread",  # with processes doit hangs for ever when one of them dies
        "backend": "sqlite3",
        "dep_file": str(session.project.state / "doit.db"),
        "reporter": type("SessionReporter", (Reporter,), {"session": session}),
    }


def _all_tasks(session: Session) -> Iterator[Task]:
    yield from _groups(session)
    for target in session.actions:
        yield TargetTask(session, target, session.actions)


def _selected_tasks(session: Session) -> list[Task]:
    """Return the tasks that the run at hand needs, none where that cannot be told from its command line."""
    asked = Run.asked() if Run.asked else None
    with _uncollected():
        selection = select(session, asked) if asked else None
    if selection is None:
        return []
    session.settled_targets = selection.settled
    wanted = dict.fromkeys(selection.targets)
    groups = [
        GroupTask(session, name, session.members_among(name, wanted)) for name in selection.groups
    ]
    return [*groups, *(TargetTask(session, target, wanted) for target in selection.targets)]


class TargetTask(Task):  # type: ignore[misc]  # doit has no type information
    """One target of the graph as doit sees it, after those of ``others`` that it needs."""

    def __init__(self, session: Session, target: str, others: Container[str]) -> None:
        action = session.actions[target]
        build = os.path.relpath(session.project.build)
        super().__init__(
            target,
            [(_run_target, [session, target])],
            targets=[
                f"{build}/{output.path}"
                for output in action.outputs.values()
                if not output.optional
            ],
            task_dep=[
                name for name in dict.fromkeys((*action.after, *action.order)) if name in others
            ],
            uptodate=[UpToDate(session, (target,))],
            subtask_of=action.stage,
            doc=action.doc,
            io={"capture": False},
            verbosity=0,
        )
        self._session = session

    def clean(self, outstream: TextIO, dryrun: bool) -> None:
        """Remove the target's files (``doit clean``), telling each."""
        _clean(self._session, [self.name], outstream, dryrun)


class GroupTask(Task):  # type: ignore[misc]  # doit has no type information
    """A name for several targets: a stage, all of a model, or one stage of a model's variants."""

    def __init__(self, session: Session, name: str, members: list[str]) -> None:
        self._session = session
        stage = name.partition(":")[0]
        super().__init__(
            name,
            None,
            task_dep=members,
            uptodate=[UpToDate(session, members, remembered=True)],
            subtask_of=stage
            if name != stage and stage != "build"
            else None,  # `doit list` tells every model
            has_subtask=True,
            doc=_group_doc(name),
        )

    def clean(self, outstream: TextIO, dryrun: bool) -> None:
        """Remove the files of every target of the group."""
        _clean(self._session, self._session.members(self.name), outstream, dryrun)


class UpToDate:
    """The one question that doit asks before it runs a task; ``doit info`` prints it with the reason.

    With ``remembered`` (groups) it trusts what was found of the same targets earlier in this process.
    """

    __signature__ = (
        inspect.Signature()
    )  # doit looks at it for every task; working it out anew is slow

    def __init__(
        self, session: Session, targets: Sequence[str], *, remembered: bool = False
    ) -> None:
        self._session = session
        self._targets = targets
        self._remembered = remembered

    def __call__(self) -> bool:
        """Tell whether there is nothing to do."""
        if self._remembered:
            return self._session.are_settled(self._targets)
        return all(self._session.is_fresh(target) for target in self._targets)

    def __repr__(self) -> str:
        """Say what has changed."""
        stale = [target for target in self._targets if not self._session.are_settled([target])]
        return "; ".join(f"{target}: {self._session.stale_reason(target)}" for target in stale)


def _groups(session: Session) -> Iterator[GroupTask]:
    by_stage: dict[str, list[str]] = {"build": list(session.actions)}
    by_variants: dict[str, list[str]] = {}
    for action in session.actions.values():
        by_stage.setdefault(action.stage, []).append(action.target)
        if action.variant:
            by_variants.setdefault(f"{action.stage}:{action.model}", []).append(action.target)
    by_model = {
        f"build:{model}": list(session.actions.of(model)) for model in session.project.models
    }
    for name, members in {**by_stage, **by_model, **by_variants}.items():
        yield GroupTask(session, name, members)


def _group_doc(name: str) -> str:
    stage, _, model = name.partition(":")
    if not model:
        return _STAGE_DOCS.get(stage, f"{stage} of every model")
    return f"everything of {model}" if stage == "build" else f"{stage} of every variant of {model}"


def _clean(session: Session, targets: Iterable[str], out: TextIO, dry_run: bool) -> None:
    for target in targets:
        if target not in session.cleaned:
            session.cleaned.add(target)
            for path in remove_target_files(session, target, dry_run=dry_run):
                out.write(f"{target} - removing {os.path.relpath(path)}\n")


def _run_target(session: Session, target: str) -> TaskFailed | TaskError | None:
    try:
        session.build(target)
    except CheckFailed as error:
        return TaskFailed(str(error))
    except BuildsysError as error:
        return TaskError(str(error))
    except (
        Exception
    ) as error:  # the border: what nobody expected is told in one line and kept in full
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        return TaskError(
            f"unexpected {told}; traceback: {os.path.relpath(session.keep_traceback(target, error))}"
        )
    return None


def _forget_with_doit(session: Session) -> None:
    """Let ``doit forget`` and ``doit clean --forget`` reach our ledger, which doit's own database is not.

    doit also drops a record whenever a task fails. That is left out: it is of no use, and its sqlite
    transaction would lock the database for any other doit until this one ends. Nor does a run fail that cannot
    write its own record at the end.
    """
    database = Globals.dep_manager
    if database is None:  # loaded by a command that runs without tasks
        return
    remove, remove_all, close = database.remove, database.remove_all, database.close

    def forget(name: str) -> None:
        if not session.judging:
            session.forget(session.members(name))
            remove(name)

    def forget_all() -> None:
        session.forget(session.actions)
        remove_all()

    def close_run() -> None:
        if session.judging:
            write_at_the_end(close, session.project.state / "doit.db")
        else:  # `doit ignore` has nothing else to do
            close()

    database.remove, database.remove_all, database.close = forget, forget_all, close_run
