"""The border to doit: tasks, configuration and commands. The only module that imports it.

doit schedules and is the command line; whether a target is up to date is asked of our executor alone.
Tasks therefore have no ``file_dep`` and one ``uptodate`` callable, and doit's own database holds nothing
that matters but what ``doit ignore`` marks.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from doit import Globals
from doit.cmd_base import Command, opt_dodo
from doit.cmd_clean import Clean as DoitClean
from doit.cmd_forget import Forget as DoitForget
from doit.cmd_ignore import Ignore as DoitIgnore
from doit.cmd_info import Info as DoitInfo
from doit.cmd_list import List as DoitList
from doit.cmd_run import Run as DoitRun
from doit.dependency import DatabaseException
from doit.exceptions import InvalidCommand, InvalidDodoFile, TaskError, TaskFailed
from doit.runner import ERROR as TASK_ERROR
from doit.task import Task

from buildsys.errors import BuildsysError, CheckFailed, ManifestErrors
from buildsys.front import commands
from buildsys.front.clean import remove_target_files
from buildsys.front.console import Reporter
from buildsys.front.session import Session
from buildsys.manifest.project import load_project

INTERRUPTED, BROKEN_PIPE = 130, 141
_STAGE_DOCS = {
    "build": "everything of every model (the default)",
    "export": "export to ONNX",
    "reference": "golden inputs and outputs of the original model",
    "simplify": "simplify the exported graphs",
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
        raise InvalidDodoFile(f"{count} error{'s' * (count != 1)} in the manifests\n{error}") from None
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
        yield from _groups(session)
        for target in session.actions:
            yield TargetTask(session, target)

    return _config(session), create_tasks


def _config(session: Session) -> dict[str, Any]:
    return {
        "default_tasks": ["build"],
        "par_type": "thread",  # with processes doit hangs for ever when one of them dies
        "backend": "sqlite3",
        "dep_file": str(session.project.state / "doit.db"),
        "reporter": type("SessionReporter", (Reporter,), {"session": session}),
    }


class TargetTask(Task):  # type: ignore[misc]  # doit has no type information
    """One target of the graph as doit sees it."""

    def __init__(self, session: Session, target: str) -> None:
        action = session.actions[target]
        build = os.path.relpath(session.project.build)
        super().__init__(
            target,
            [(_run_target, [session, target])],
            targets=[f"{build}/{output.path}" for output in action.outputs.values() if not output.optional],
            task_dep=list(dict.fromkeys((*action.after, *action.order))),
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

    def __init__(self, session: Session, name: str, doc: str) -> None:
        self._session = session
        members = session.members(name)
        stage = name.partition(":")[0]
        super().__init__(
            name,
            None,
            task_dep=members,
            uptodate=[UpToDate(session, members, remembered=True)],
            subtask_of=stage if name != stage and stage != "build" else None,  # `doit list` tells every model
            has_subtask=True,
            doc=doc,
        )

    def clean(self, outstream: TextIO, dryrun: bool) -> None:
        """Remove the files of every target of the group."""
        _clean(self._session, self._session.members(self.name), outstream, dryrun)


class UpToDate:
    """The one question that doit asks before it runs a task; ``doit info`` prints it with the reason.

    With ``remembered`` (groups) it trusts what was found of the same targets earlier in this process.
    """

    __signature__ = inspect.Signature()  # doit looks at it for every task; working it out anew is slow

    def __init__(self, session: Session, targets: Sequence[str], *, remembered: bool = False) -> None:
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
    stages = dict.fromkeys(("build", *(action.stage for action in session.actions.values())))
    for stage in stages:
        yield GroupTask(session, stage, _STAGE_DOCS.get(stage, f"{stage} of every model"))
    for model in session.project.models:
        yield GroupTask(session, f"build:{model}", f"everything of {model}")
    varied = {(action.stage, action.model): None for action in session.actions.values() if action.variant}
    for stage, model in varied:
        yield GroupTask(session, f"{stage}:{model}", f"{stage} of every variant of {model}")


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
    except Exception as error:  # the border: what nobody expected is told in one line and kept in full
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        return TaskError(f"unexpected {told}; traceback: {os.path.relpath(session.keep_traceback(target, error))}")
    return None


def _forget_with_doit(session: Session) -> None:
    """Let ``doit forget`` and ``doit clean --forget`` reach our ledger, which doit's own database is not.

    doit also drops a record whenever a task fails. That is left out: it is of no use, and its sqlite
    transaction would lock the database for any other doit until this one ends.
    """
    database = Globals.dep_manager
    if database is None:  # loaded by a command that runs without tasks
        return
    remove, remove_all = database.remove, database.remove_all

    def forget(name: str) -> None:
        if not session.judging:
            session.forget(session.members(name))
            remove(name)

    def forget_all() -> None:
        session.forget(session.actions)
        remove_all()

    database.remove, database.remove_all = forget, forget_all


class _WithoutTraceback:
    """Mixed into doit's commands: what people do wrong, Ctrl-C and a closed pipe end in one line or none."""

    def also_known(self) -> Sequence[str]:
        """Return what else than a target might have been meant."""
        return ()

    def execute(self, params: Any, args: list[str]) -> Any:
        """Run the command; an unknown name is answered with the nearest known ones."""
        try:
            return super().execute(params, args)  # type: ignore[misc]  # doit's command comes next in the bases
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it exits
            return BROKEN_PIPE
        except (DatabaseException, sqlite3.DatabaseError) as error:  # doit's; ours never comes here
            told = str(error.__cause__ or error.__context__ or error)
            hint = "it may be deleted: only what `doit ignore` has marked is lost"
            raise InvalidDodoFile(f"cannot use doit's own record {params['dep_file']}: {told}; {hint}") from None
        except (InvalidCommand, KeyError) as error:
            tasks = [task.name for task in getattr(self, "task_list", [])]
            asked = [getattr(error, "not_found", None) or "", *args]
            unknown = next((name for name in asked if name and "*" not in name and name not in tasks), None)
            if not tasks or unknown is None:
                raise
            near = commands.nearest(unknown, [*tasks, *self.also_known()])
            hint = f"nearest: {', '.join(near)}" if near else "`doit list --all` tells all of them"
            raise InvalidCommand(f"there is no target {unknown!r}; {hint}") from None


class Run(_WithoutTraceback, DoitRun):  # type: ignore[misc]
    """doit's run, with an exit code that tells a failed check from an error also under ``--continue``."""

    name = "run"

    def also_known(self) -> Sequence[str]:
        """Return the commands: `doit lst` comes here as a target that is to run."""
        names: Sequence[str] = self.loader.cmd_names
        return names

    def execute(self, params: Any, args: list[str]) -> Any:
        """Return 1 where doit counts the targets behind a failed check as errors."""
        Session.jobs = max(1, params["num_process"])
        code = super().execute(params, args)
        session = getattr(self.loader.load_doit_config().get("reporter"), "session", None)
        return session.exit_code if code == TASK_ERROR and session and session.exit_code else code


class List(_WithoutTraceback, DoitList):  # type: ignore[misc]
    """doit's list."""


class Info(_WithoutTraceback, DoitInfo):  # type: ignore[misc]
    """doit's info."""


class Clean(_WithoutTraceback, DoitClean):  # type: ignore[misc]
    """doit's clean."""


class Forget(_WithoutTraceback, DoitForget):  # type: ignore[misc]
    """doit's forget."""


class Ignore(_WithoutTraceback, DoitIgnore):  # type: ignore[misc]
    """doit's ignore."""


class _ProjectCommand(Command):  # type: ignore[misc]
    """A command of ours: a function of the project's folder and the arguments that returns what to print."""

    cmd_options: tuple[dict[str, Any], ...] = (opt_dodo,)
    answer: staticmethod[[Path, Sequence[str]], str]

    def execute(self, params: Any, args: list[str]) -> int:
        """Print the answer; an expected failure is one line and exit code 3."""
        dodo = Path(params["dodoFile"]).resolve()
        if not dodo.is_file():
            raise InvalidDodoFile(f"there is no {params['dodoFile']} here; name it with -f")
        try:
            text = self.answer(dodo.parent, args)
        except BuildsysError as error:
            raise InvalidCommand(str(error)) from None
        sys.stdout.write(text)
        return 0


class Resolve(_ProjectCommand):
    """``doit resolve MODEL``."""

    doc_purpose = "print a model's manifest as its targets use it"
    doc_usage = "MODEL"
    answer = staticmethod(commands.resolve)


class Workers(_ProjectCommand):
    """``doit workers``."""

    doc_purpose = "list the worker servers that wait for a next run, or end them"
    cmd_options = (
        opt_dodo,
        {"name": "stop", "long": "stop", "type": bool, "default": False, "help": "end them, with what runs in them"},
    )
    answer = staticmethod(commands.workers)

    def execute(self, params: Any, args: list[str]) -> int:
        """Hand the option on as an argument."""
        return super().execute(params, [*args, *(["--stop"] if params["stop"] else [])])


class Schema(_ProjectCommand):
    """``doit schema``."""

    doc_purpose = "write the JSON Schemas for editors into configs/schema"
    answer = staticmethod(commands.schema)
