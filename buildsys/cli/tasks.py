"""Tasks and configuration of doit.

doit provides the command line and the scheduler; our executor alone decides which targets are up
to date. Tasks therefore have no ``file_dep`` and one ``uptodate`` callable.
"""

from __future__ import annotations

import inspect
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TextIO

from doit import Globals
from doit.exceptions import InvalidCommand, InvalidDodoFile, TaskError, TaskFailed
from doit.task import Task

from buildsys.cli.commands.build import Requested, Run
from buildsys.cli.commands.doit_commands import DoitCommand, List
from buildsys.cli.console.reporter import Reporter
from buildsys.cli.environment_variables import check_variables
from buildsys.cli.project_root import shown_path, shown_text
from buildsys.cli.session import Session, no_garbage_collection
from buildsys.cli.target_names import STAGE_DOCS
from buildsys.errors import BuildsysError, CheckFailed, ManifestErrors, UsageError
from buildsys.project.load import load_project
from buildsys.project.plan import model_of
from buildsys.report.formatting import plural
from buildsys.system.printable import printable

Creator = Callable[[], Iterator[Task]]


def load(root: Path) -> tuple[dict[str, Any], Creator]:
    """Return DOIT_CONFIG and the task creator of a project.

    Raises: InvalidDodoFile: the manifests or environment variables are wrong; doit prints it and
    exits with 3.
    """
    try:
        check_variables(root)
        with no_garbage_collection():
            session = Session(load_project(root, leave_out=Run.leaves_out))
        session.project.state.mkdir(parents=True, exist_ok=True)
    except ManifestErrors as error:
        summary = f"{plural(len(error.errors), 'error')} in the manifests"
        raise InvalidDodoFile(printable(shown_text(f"{summary}\n{error}"))) from None
    except (BuildsysError, OSError) as error:
        raise InvalidDodoFile(printable(str(error))) from None
    return doit_config(session)


def doit_config(session: Session) -> tuple[dict[str, Any], Creator]:
    """Return doit's configuration and the task creator for a loaded project."""
    default_tasks = ["build"]

    def create_tasks() -> Iterator[Task]:
        """Build inference engines from model manifests."""
        _connect_database(session)
        names = DoitCommand.names
        try:
            names[:] = session.full_names(names, DoitCommand.only)
            if DoitCommand.since:
                names[:] = _changed(session, names, DoitCommand.since)
        except UsageError as error:
            # a name or tag that is unknown may be that of a manifest left out
            broken = [str(one) for errors in session.project.broken.values() for one in errors]
            left_out = f"; left out as broken: {'; '.join(broken[:1])}" if broken else ""
            more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
            raise InvalidCommand(printable(f"{error}{left_out}{more}")) from None
        if DoitCommand.since and not names:
            names.append("build")  # doit would build everything
            yield _group_task(session, "build", [])
            return
        selection = None
        if Run.requested is not None:
            with no_garbage_collection():
                selection = select(session, Run.requested(session))
        if selection is not None:
            session.requested = frozenset(selection.targets)
            chosen = names or default_tasks
            chosen[:] = one_model_after_another(chosen, selection)
            yield from _tasks(session, selection)
        else:
            yield from _all_tasks(session, groups_only=List.groups_only)

    config = {
        "default_tasks": default_tasks,
        "par_type": "thread",  # with processes doit hangs forever if one of them dies
        "backend": "sqlite3",
        "dep_file": str(session.project.state / "doit.db"),
        "reporter": type("SessionReporter", (Reporter,), {"session": session}),
    }
    return config, create_tasks


def _changed(session: Session, names: Sequence[str], revision: str) -> list[str]:
    """Return the named targets with changes since a git revision."""
    from buildsys.cli.commands.plan import changed_targets

    chosen = {target for name in names for target in session.members(name)}
    return [target for target in changed_targets(session, revision) if target in chosen]


class Selection(NamedTuple):
    """Tasks for doit, and requested targets known to be up to date."""

    groups: list[str]
    targets: list[str]
    up_to_date: list[str]


def select(session: Session, requested: Requested) -> Selection | None:
    """Return the targets to check, None for a pattern, path or mistake.

    Of thousands of models only the selected targets become tasks of doit; models that are entirely
    up to date are left out.
    """
    groups: list[str] = []
    whole: dict[str, None] = {}  # models
    single: list[str] = []
    for name in dict.fromkeys(requested.names):
        stage, colon, model = name.partition(":")
        if stage == "build" and (not colon or model in session.project.models):
            whole |= dict.fromkeys([model] if colon else session.project.models)
            groups.append(name)
            continue
        members = [] if "*" in name or name.endswith(":") else session.members(name)
        if not members:
            return None
        single += members
        groups += [name] if name not in members else []
    needed = list(session.needed(single))
    fresh: dict[str, dict[str, str]] = {}
    if not requested.every_task:
        checked = dict.fromkeys((*whole, *map(model_of, needed)))
        fresh = session.up_to_date_models(checked, check=whole)
    targets = dict.fromkeys(name for name in requested.names if name not in groups)
    targets.update(dict.fromkeys(one for one in needed if model_of(one) not in fresh))
    for model in whole:
        if model not in fresh:
            targets.update(dict.fromkeys(session.actions.targets(model)))
    known = dict.fromkeys(target for model in whole for target in fresh.get(model, ()))
    known.update(dict.fromkeys(one for one in needed if model_of(one) in fresh))
    up_to_date = [one for one in known if one not in targets]
    return Selection(groups, session.in_order(targets), up_to_date)


def one_model_after_another(names: Sequence[str], selection: Selection) -> list[str]:
    """Replace ``build`` by its models: doit goes breadth first through one group's targets."""
    models = dict.fromkeys(f"build:{model_of(target)}" for target in selection.targets)
    if "build" not in names or not models:
        return list(names)
    selection.groups.extend(name for name in models if name not in selection.groups)
    return list(dict.fromkeys((*models, *(name for name in names if name != "build"))))


def _tasks(session: Session, selection: Selection) -> Iterator[Task]:
    session.up_to_date_targets = selection.up_to_date
    wanted = dict.fromkeys(selection.targets)
    for name in selection.groups:
        yield _group_task(session, name, session.members_among(name, wanted))
    for target in wanted:
        yield _target_task(session, target, wanted)


def _all_tasks(session: Session, *, groups_only: bool) -> Iterator[Task]:
    """Yield the tasks of all targets and groups, or only empty groups."""
    if groups_only:
        models = (f"build:{model}" for model in session.project.models)
        for name in ("build", *session.actions.stages(), *models):
            yield _group_task(session, name, [])
        return
    with no_garbage_collection():  # of the plans
        groups: dict[str, list[str]] = {"build": list(session.actions)}
    variants: dict[str, list[str]] = {}
    for action in session.actions.values():
        groups.setdefault(action.stage, []).append(action.target)
        if action.variant:
            variants.setdefault(f"{action.stage}:{action.model}", []).append(action.target)
    for model in session.project.models:
        groups[f"build:{model}"] = list(session.actions.of(model))
    for name, members in {**groups, **variants}.items():
        yield _group_task(session, name, members)
    for target in session.actions:
        yield _target_task(session, target, session.actions)


class SessionTask(Task):  # type: ignore[misc]  # doit has no type information
    """A target, or a name for several."""

    session: Session

    def clean(self, outstream: TextIO, dryrun: bool) -> None:
        """Remove the files of all targets of this name (``buildsys clean``)."""
        for target in self.session.members(self.name):
            if target not in self.session.cleaned:
                self.session.cleaned.add(target)
                for path in remove_target_files(self.session, target, dry_run=dryrun):
                    outstream.write(f"{target} - removing {shown_path(path)}\n")


def _target_task(session: Session, target: str, others: Iterable[str]) -> SessionTask:
    """Return the task of one target, after its dependencies among ``others``."""
    action = session.actions[target]
    build = os.path.relpath(session.project.build)
    needed = dict.fromkeys((*action.after, *action.order))
    task = SessionTask(
        target,
        [(_run_target, [session, target])],
        targets=[f"{build}/{one.path}" for one in action.outputs.values() if not one.optional],
        task_dep=[name for name in needed if name in others],
        uptodate=[UpToDate(session, (target,))],
        subtask_of=action.stage,
        doc=action.doc,
        io={"capture": False},
        verbosity=0,
    )
    task.session = session
    return task


def _group_task(session: Session, name: str, members: list[str]) -> SessionTask:
    """Return the task of a stage, model or both."""
    stage, _, model = name.partition(":")
    if not model:
        doc = STAGE_DOCS.get(stage, f"{stage} of every model")
    elif stage == "build":
        doc = f"everything of {model}"
    else:
        doc = f"{stage} of every variant of {model}"
    task = SessionTask(
        name,
        None,
        task_dep=members,
        uptodate=[UpToDate(session, members, remembered=True)],
        subtask_of=stage if model and stage != "build" else None,  # `buildsys list` shows models
        has_subtask=True,
        doc=doc,
    )
    task.session = session
    return task


@dataclass(eq=False, repr=False)
class UpToDate:
    """Doit's check before a task; ``doit info`` prints it with the reason."""

    # doit reads it for every task; computing it is slow
    __signature__: ClassVar[inspect.Signature] = inspect.Signature()

    session: Session
    targets: Sequence[str]
    remembered: bool = False  # an earlier check of the same targets in this process counts

    def __call__(self) -> bool:
        """Return True if all targets are up to date."""
        if self.remembered:
            return self.session.are_up_to_date(self.targets)
        return all(self.session.is_fresh(target) for target in self.targets)

    def __repr__(self) -> str:
        """Return the stale reasons."""
        session = self.session
        stale = [target for target in self.targets if not session.are_up_to_date([target])]
        return "; ".join(f"{target}: {session.stale_reason(target)}" for target in stale)


def remove_target_files(session: Session, target: str, *, dry_run: bool) -> Iterator[Path]:
    """Remove the recorded and declared files of a target, and its log.

    Yields files and emptied folders. With ``dry_run`` nothing is removed, and only files are
    yielded.
    """
    build = session.project.build
    declared = {output.path for output in session.actions[target].outputs.values()}
    paths = {build / path for path in declared | session.executor.ledger.owned(target)}
    paths.add(session.log(target))
    files = sorted(path for path in paths if path.is_file() or path.is_symlink())
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
        path = shown_path(session.keep_traceback(target, error))
        return TaskError(f"unexpected {line}; traceback: {path}")
    return None


def _forget(session: Session, target: str) -> None:
    has_baseline = session.actions[target].baseline is not None
    session.executor.ledger.forget(target, keep_records=has_baseline)


def _connect_database(session: Session) -> None:
    """Let ``doit forget`` and ``buildsys clean --forget`` reach our ledger.

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
            for target in session.members(name):
                _forget(session, target)
            remove(name)

    def forget_all() -> None:
        for target in session.actions:
            _forget(session, target)
        remove_all()

    def close_database() -> None:
        try:
            close()
        except sqlite3.Error as error:
            if not session.is_run:  # all that `doit ignore` has to do
                raise
            problem = f"cannot write doit's database {session.project.state / 'doit.db'}: {error}"
            sys.stderr.write(f"buildsys: warning: {problem}; the results of this run are kept\n")

    database.remove, database.remove_all, database.close = forget, forget_all, close_database
