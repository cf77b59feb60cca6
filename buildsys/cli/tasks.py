"""Tasks and configuration of doit.

doit provides the command line and the scheduler; our executor alone decides which targets are up
to date. Tasks therefore have no ``file_dep`` and one ``uptodate`` callable.
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

from buildsys.cli.commands.run import Run
from buildsys.cli.console.reporter import Reporter
from buildsys.cli.doit_command import write_database
from buildsys.cli.session import Session
from buildsys.cli.target_selection import select
from buildsys.errors import BuildsysError, CheckFailed, ManifestErrors
from buildsys.manifest.project import load_project

_STAGE_DOCS = {
    "build": "everything of every model (the default)",
    "operators": "build functions and libraries of custom operators",
    "export": "export to ONNX",
    "reference": "record golden inputs and outputs of the original model",
    "surgery": "edit graphs as their manifests say",
    "simplify": "simplify the exported graphs",
    "calibrate": "measure the ranges for int8 and fp8",
    "convert": "convert graphs to other precisions",
    "validate": "compare the graphs in ONNX Runtime with the original model",
    "engine": "build the engines",
    "verify": "compare the engines with the golden outputs",
    "bench": "benchmark the engines",
    "report": "write the reports",
}
Creator = Callable[[], Iterator[Task]]


def load(root: Path) -> tuple[dict[str, Any], Creator]:
    """Return DOIT_CONFIG and the task creator of a project.

    Raises: InvalidDodoFile: the manifests are wrong; doit prints it and exits with 3.
    """
    try:
        with _no_garbage_collection():
            session = Session(load_project(root))
        session.project.state.mkdir(parents=True, exist_ok=True)
    except ManifestErrors as error:
        count = len(error.errors)
        summary = f"{count} error{'s' * (count != 1)} in the manifests"
        raise InvalidDodoFile(f"{summary}\n{error}") from None
    except (BuildsysError, OSError) as error:
        raise InvalidDodoFile(str(error)) from None
    return doit_config(session)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Exclude modules and manifests from garbage collection; that saves 60 ms."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def doit_config(session: Session) -> tuple[dict[str, Any], Creator]:
    """Return doit's configuration and the task creator for a loaded project."""

    def create_tasks() -> Iterator[Task]:
        """Build inference engines from model manifests."""
        _connect_database(session)
        yield from _selected_tasks(session) or _all_tasks(session)

    config = {
        "default_tasks": ["build"],
        "par_type": "thread",  # with processes doit hangs forever if one of them dies
        "backend": "sqlite3",
        "dep_file": str(session.project.state / "doit.db"),
        "reporter": type("SessionReporter", (Reporter,), {"session": session}),
    }
    return config, create_tasks


def _selected_tasks(session: Session) -> list[Task]:
    """Return the tasks of this run, if its command line determines them."""
    if Run.requested is None:
        return []
    with _no_garbage_collection():
        selection = select(session, Run.requested())
    if selection is None:
        return []
    session.up_to_date_targets = selection.up_to_date
    wanted = dict.fromkeys(selection.targets)
    groups = [
        GroupTask(session, name, session.members_among(name, wanted)) for name in selection.groups
    ]
    return [*groups, *(TargetTask(session, target, wanted) for target in selection.targets)]


def _all_tasks(session: Session) -> Iterator[Task]:
    groups: dict[str, list[str]] = {"build": list(session.actions)}
    variants: dict[str, list[str]] = {}
    for action in session.actions.values():
        groups.setdefault(action.stage, []).append(action.target)
        if action.variant:
            variants.setdefault(f"{action.stage}:{action.model}", []).append(action.target)
    for model in session.project.models:
        groups[f"build:{model}"] = list(session.actions.of(model))
    for name, members in {**groups, **variants}.items():
        yield GroupTask(session, name, members)
    for target in session.actions:
        yield TargetTask(session, target, session.actions)


class TargetTask(Task):  # type: ignore[misc]  # doit has no type information
    """One target, after its dependencies among ``others``."""

    def __init__(self, session: Session, target: str, others: Container[str]) -> None:
        action = session.actions[target]
        build = os.path.relpath(session.project.build)
        outputs = [f"{build}/{one.path}" for one in action.outputs.values() if not one.optional]
        needed = dict.fromkeys((*action.after, *action.order))
        super().__init__(
            target,
            [(_run_target, [session, target])],
            targets=outputs,
            task_dep=[name for name in needed if name in others],
            uptodate=[UpToDate(session, (target,))],
            subtask_of=action.stage,
            doc=action.doc,
            io={"capture": False},
            verbosity=0,
        )
        self._session = session

    def clean(self, outstream: TextIO, dryrun: bool) -> None:
        """Remove the target's files (``doit clean``)."""
        _clean(self._session, [self.name], outstream, dryrun)


class GroupTask(Task):  # type: ignore[misc]  # doit has no type information
    """A name for several targets: a stage, model or stage of a model."""

    def __init__(self, session: Session, name: str, members: list[str]) -> None:
        self._session = session
        stage, _, model = name.partition(":")
        if not model:
            doc = _STAGE_DOCS.get(stage, f"{stage} of every model")
        elif stage == "build":
            doc = f"everything of {model}"
        else:
            doc = f"{stage} of every variant of {model}"
        super().__init__(
            name,
            None,
            task_dep=members,
            uptodate=[UpToDate(session, members, remembered=True)],
            subtask_of=stage if model and stage != "build" else None,  # `doit list` shows models
            has_subtask=True,
            doc=doc,
        )

    def clean(self, outstream: TextIO, dryrun: bool) -> None:
        """Remove the files of every target of the group."""
        _clean(self._session, self._session.members(self.name), outstream, dryrun)


class UpToDate:
    """Doit's check before a task; ``doit info`` prints it with the reason.

    With ``remembered`` (groups) an earlier check of the same targets in this process counts.
    """

    __signature__ = inspect.Signature()  # doit reads it for every task; computing it is slow

    def __init__(
        self, session: Session, targets: Sequence[str], *, remembered: bool = False
    ) -> None:
        self._session = session
        self._targets = targets
        self._remembered = remembered

    def __call__(self) -> bool:
        """Return True if all targets are up to date."""
        if self._remembered:
            return self._session.are_up_to_date(self._targets)
        return all(self._session.is_fresh(target) for target in self._targets)

    def __repr__(self) -> str:
        """Return the stale reasons."""
        session = self._session
        stale = [target for target in self._targets if not session.are_up_to_date([target])]
        return "; ".join(f"{target}: {session.stale_reason(target)}" for target in stale)


def _clean(session: Session, targets: Iterable[str], out: TextIO, dry_run: bool) -> None:
    for target in targets:
        if target not in session.cleaned:
            session.cleaned.add(target)
            for path in remove_target_files(session, target, dry_run=dry_run):
                out.write(f"{target} - removing {os.path.relpath(path)}\n")


def remove_target_files(session: Session, target: str, *, dry_run: bool) -> Iterator[Path]:
    """Remove the files of a target; yield files and emptied folders.

    With ``dry_run`` nothing is removed, and only files are yielded.
    """
    files, build = session.files(target), session.project.build
    for path in files:
        if not dry_run:
            path.unlink(missing_ok=True)
        yield path
    for folder in sorted({path.parent for path in files}, reverse=True) if not dry_run else ():
        while folder != build and build in folder.parents:
            try:
                folder.rmdir()
            except OSError:  # not empty, or already removed
                break
            yield folder
            folder = folder.parent


def _run_target(session: Session, target: str) -> TaskFailed | TaskError | None:
    try:
        session.build(target)
    except CheckFailed as error:
        return TaskFailed(str(error))
    except BuildsysError as error:
        return TaskError(str(error))
    except Exception as error:  # the border: one line, with the traceback in a file
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        path = os.path.relpath(session.keep_traceback(target, error))
        return TaskError(f"unexpected {line}; traceback: {path}")
    return None


def _connect_database(session: Session) -> None:
    """Let ``doit forget`` and ``doit clean --forget`` reach our ledger.

    doit also drops a record whenever a task fails. That is left out, as its sqlite transaction
    would lock the database for every other doit until this one ends. Nor does a run fail if doit's
    own database cannot be written at the end.
    """
    database = Globals.dep_manager
    if database is None:  # loaded by a command without tasks
        return
    remove, remove_all, close = database.remove, database.remove_all, database.close

    def forget(name: str) -> None:
        if not session.is_run:
            session.forget(session.members(name))
            remove(name)

    def forget_all() -> None:
        session.forget(session.actions)
        remove_all()

    def close_database() -> None:
        if session.is_run:
            write_database(close, session.project.state / "doit.db")
        else:  # all that `doit ignore` has to do
            close()

    database.remove, database.remove_all, database.close = forget, forget_all, close_database
