"""The tasks of a project for doit, and runs of them.

doit provides its command line and the scheduler; our executor alone decides which targets are up
to date. Tasks therefore have no ``file_dep`` and one ``uptodate`` callable.
"""

# ruff: noqa: E402 - Ctrl-C must not interrupt an import

from buildsys.cli.interrupts import end_at_interrupt

end_at_interrupt()

import atexit
import configparser
import inspect
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TextIO

from doit.api import run_tasks
from doit.cmd_base import DoitCmdBase, ModuleTaskLoader
from doit.exceptions import InvalidDodoFile, TaskError, TaskFailed
from doit.globals import Globals

from buildsys.cli import doit_backend
from buildsys.cli.commands.clean import remove_files
from buildsys.cli.console.reporter import Reporter
from buildsys.cli.console.streams import check_output, guard_streams, guarded
from buildsys.cli.environment_variables import check_variables
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import MANIFEST, STAGE_DOCS
from buildsys.errors import (
    BuildsysError,
    CheckFailed,
    ManifestErrors,
    UsageError,
    describe_os_error,
)
from buildsys.plan.action import Action
from buildsys.report.formatting import plural
from buildsys.stages.table import stage_info
from buildsys.store.publish import refuse_links
from buildsys.system.printable import printable

BACKENDS = {"buildsys": "buildsys.cli.doit_backend:Backend"}  # if the package is not installed
BUILD = "build"  # the group of everything; build:MODEL is everything of a model
_WAITING_THREADS = 16  # besides the ones for -j


def load(root: Path) -> "tuple[dict[str, Any], ProjectTasks]":
    """Load a project for its dodo file: DOIT_CONFIG and the task creator.

    Raises: InvalidDodoFile: shared manifests or environment variables are wrong; doit prints it
    and exits with 3.
    """
    guard_streams()
    _guard_answers()
    try:
        check_variables(root)
        session = BuildSession.load(root)
        return doit_config(session), ProjectTasks(session)
    except (BuildsysError, OSError) as error:
        count = len(error.errors) if isinstance(error, ManifestErrors) else 0
        title = f"{plural(count, 'error')} in the manifests\n" if count else ""
        text = describe_os_error(error) if isinstance(error, OSError) else error
        raise InvalidDodoFile(printable(f"{title}{text}")) from None


def doit_config(session: BuildSession) -> dict[str, Any]:
    """Configure doit for a loaded project. Raises: StageError: the build folder is a link."""
    refuse_links(session.project.build)
    doit_backend.connect(session)
    session.try_changes = partial(_try_changes, session)
    atexit.register(_report_failures, session)  # other reporters (`doit -r json`) do not
    session.project.state.mkdir(parents=True, exist_ok=True)
    return {
        # one model after another: doit goes breadth first through one group
        "default_tasks": [
            *(f"{BUILD}:{model}" for model in session.project.models),
            *map(_manifest_task, session.project.broken),
        ],
        "par_type": "thread",  # with processes doit hangs forever if one of them dies
        "backend": "buildsys",
        "dep_file": str(session.project.state / doit_backend.FILE),
        "reporter": type("SessionReporter", (Reporter,), {"session": session}),
    }


def _guard_answers() -> None:
    """Let doit's commands write to the guarded output; after a loss they end with an error."""
    commands: list[Any] = []  # that write: not runs, whose reporter does

    def output(command: Any) -> TextIO:
        commands.append(command)
        return sys.stdout

    def end() -> None:
        try:
            code = check_output(0) if commands else 0
        except BuildsysError as error:
            sys.stderr.write(printable(f"ERROR: {error}\n"))
            code = error.exit_code
        if code:
            sys.stderr.flush()
            os._exit(code)  # doit has a code of its own

    atexit.register(end)
    # a command has taken the standard output before this project is loaded
    DoitCmdBase.outstream = property(output, lambda *_: None)


def run_targets(
    session: BuildSession,
    names: Sequence[str],
    *,
    jobs: int = 0,
    keep_going: bool = False,
    force: bool = False,
    single: bool = False,
    out: TextIO | None = None,
) -> int:
    """Run targets and groups with all that they need; return the exit code.

    ``single``: only the named ones. ``jobs`` of 0: one at a time, in this thread.
    """
    session.jobs, session.always = max(1, jobs), force
    tasks = ProjectTasks(session)
    tasks.choose_run(names, single=single)
    if jobs > 1:
        from buildsys.system.devices import gpu_uuids

        # a thread that waits for a GPU must not keep the processor idle
        jobs += _WAITING_THREADS if gpu_uuids() else 0
    config = {
        **doit_config(session),
        "num_process": jobs,
        "continue": keep_going,
        "always": force,
        "outfile": out or sys.stdout,
    }
    if BUILD not in names:  # else one model after another
        config["default_tasks"] = list(names)
    loader = ModuleTaskLoader({"DOIT_CONFIG": config, "task_targets": tasks})
    try:
        code = run_tasks(loader, {}, extra_config={"BACKEND": BACKENDS})
    except SystemExit as end:  # the reporter knows the code better than doit
        code = end.code
    except (ValueError, configparser.Error) as error:
        problem = f"cannot read pyproject.toml or doit.cfg: {error}".splitlines()[0]
        raise UsageError(problem, "correct it, doit reads both") from None
    return code if isinstance(code, int) else 0


def _try_changes(
    session: BuildSession, failed: Action, problem: str, changes: Sequence[str], folder: Path
) -> str:
    from buildsys.cli.trials import describe_trials

    try:
        return describe_trials(session, failed, problem, changes, folder)
    except Exception as error:  # the border: the failure itself must be reported
        return f"the trial of changes ended: {session.keep_traceback(failed.target, error)}"


def _report_failures(session: BuildSession) -> None:
    """Replace the reports of models with failed targets, unless that is done."""
    if not session.checked_stale_outputs and session.exit_code:
        from buildsys.cli.failure_report import report_failure

        ends = session.finished.values()
        failed = (session.actions[end.target].model for end in ends if end.status == "failed")
        report_failure(session, dict.fromkeys(failed))


class ProjectTasks:
    """Creator of the tasks of a project, by default of all."""

    def __init__(self, session: BuildSession) -> None:
        self.session = session
        self._groups: Sequence[str] = (BUILD,)
        self._targets: dict[str, None] | None = None  # in build order; None: all

    def create_doit_tasks(self) -> Iterator[dict[str, Any]]:
        """Yield tasks as doit's dictionaries."""
        session = self.session
        doit_backend.follow(Globals.dep_manager)
        targets = session.actions if self._targets is None else self._targets
        members: dict[str, list[str]] = {name: [] for name in self._groups}
        for target in targets:
            action = session.actions[target]
            for name in (BUILD, f"{BUILD}:{action.model}", action.stage):
                members.setdefault(name, []).append(target)
            if action.variant:
                members.setdefault(f"{action.stage}:{action.model}", []).append(target)
        models = [group for group in members if group.startswith(f"{BUILD}:")]
        broken = [_manifest_task(file) for file in session.broken]
        for name in sorted(members, key=lambda name: name.count(":")):  # a stage before its parts
            after = members[name] if ":" in name else broken
            after = [*models, *broken] if name == BUILD else after
            yield _group_task(session, name, members[name], after)
        for target in targets:
            yield _target_task(session, target, targets)
        if broken:
            yield {"basename": MANIFEST, "name": None, "doc": "the errors of broken manifests"}
        for file, errors in session.broken.items():
            yield {
                "basename": MANIFEST,
                "name": file,
                "doc": f"left out: {errors[0]}",
                "actions": [partial(TaskError, "\n".join(map(str, errors)))],
                "task_dep": [*targets],  # a failure ends the run
            }

    def choose(
        self,
        command: str,
        names: list[str],
        options: Mapping[str, Any],
        others: Collection[str] = (),
    ) -> None:
        """Choose what a command of doit needs; ``names`` become full names.

        ``others`` are names and outputs of tasks that are not ours, and may need any of ours.
        Raises: UsageError: a name is unknown or ambiguous.
        """
        session = self.session
        session.jobs = max(1, options.get("num_process") or 1)
        session.always = bool(options.get("always"))
        own = [name for name in names if not any(fnmatchcase(other, name) for other in others)]
        if own or not names:
            session.leave_out([name for name in own if not name.startswith(f"{MANIFEST}:")])
        full = [session.full_names([name]) if name in own else [name] for name in names]
        names[:] = dict.fromkeys(chain.from_iterable(full))
        if others:
            return
        if command == "run":
            self.choose_run(names or [BUILD], single=options["single"])
        elif names:
            members = (target for name in names for target in session.members(name))
            self._choose(names, session.needed(members))
        elif command == "list" and not (options["subtasks"] or options["status"]):
            models = (f"{BUILD}:{model}" for model in session.project.models)
            self._groups, self._targets = [BUILD, *session.actions.stages(), *models], {}

    def choose_run(self, names: Sequence[str], *, single: bool = False) -> None:
        """Choose targets with all that they need, without models that are up to date.

        ``single``: only the named targets, even if they are up to date.
        """
        session = self.session
        if single:
            members = {target for name in names for target in session.members(name)}
            self._choose(names, members)
            return
        models: list[str] = []
        targets: set[str] = set()
        for name in names:
            stage, _, model = name.partition(":")
            if stage == BUILD:
                models += [model] if model else session.project.models
            else:
                targets.update(session.members(name))
        fresh = {} if session.always else session.up_to_date_models(models)
        for model in models:
            targets.update(() if model in fresh else session.actions.targets(model))
        names = [*names, *(f"{BUILD}:{model}" for model in models)]
        chosen = self._choose(names, session.needed(targets))
        done = [target for ends in fresh.values() for target in ends if target not in chosen]
        session.up_to_date_targets = done

    def _choose(self, names: Sequence[str], targets: Collection[str]) -> Collection[str]:
        self._groups = [name for name in names if name not in targets]
        self._targets = dict.fromkeys(self.session.in_order(targets))
        return self._targets


def _manifest_task(file: str) -> str:
    """Name the task that fails because of a broken manifest."""
    return f"{MANIFEST}:{file}"


def _group_task(
    session: BuildSession, name: str, members: Sequence[str], after: Sequence[str]
) -> dict[str, Any]:
    """Make the task of everything, a stage, a model, or a stage of a model."""
    stage, _, model = name.partition(":")
    doc = STAGE_DOCS.get(stage, f"{stage} of every model")
    if model:
        doc = f"{f'{stage} of every variant' if stage != BUILD else 'everything'} of {model}"
    task: dict[str, Any] = {
        "basename": name if stage == BUILD else stage,
        "actions": None,
        "doc": doc,
        "uptodate": [UpToDate(session, members)],
        "clean": [(clean, [session, name])],
    }
    task["task_dep"] = [*after]  # doit adds the members of a stage
    return task if stage == BUILD else {**task, "name": model or None}


def _target_task(session: BuildSession, target: str, tasks: Collection[str]) -> dict[str, Any]:
    """Make the task of a target, after its dependencies among ``tasks``."""
    action, build = session.actions[target], os.path.relpath(session.project.build)
    needed = dict.fromkeys((*action.after, *action.order))
    return {
        "basename": action.stage,
        "name": target.partition(":")[2],
        "doc": stage_info(action.stage).doc,
        "actions": [(run_target, [session, target])],
        "targets": [f"{build}/{out.path}" for out in action.outputs.values() if not out.optional],
        "task_dep": [name for name in needed if name in tasks],
        "uptodate": [UpToDate(session, (target,))],
        "clean": [(clean, [session, target])],
        "io": {"capture": False},  # with threads it would land in the wrong task
    }


@dataclass(eq=False, repr=False)
class UpToDate:
    """Doit's check before a task; ``doit info`` prints it with the reason."""

    # doit reads it for every task; computing it is slow
    __signature__: ClassVar[inspect.Signature] = inspect.Signature()

    session: BuildSession
    targets: Sequence[str]

    def __call__(self) -> bool:
        """Check that all targets are up to date."""
        return self.session.are_up_to_date(self.targets)

    def __repr__(self) -> str:
        """List stale targets with the reasons."""
        stale = [t for t in self.targets if not self.session.are_up_to_date([t])]
        return printable("; ".join(f"{t}: {self.session.stale_reason(t)}" for t in stale))


def run_target(session: BuildSession, target: str) -> TaskFailed | TaskError | None:
    """Run a target; its failures are those of doit's task."""
    if multiprocessing.parent_process() is not None:  # of `doit -n 2` with another DOIT_CONFIG
        return _run_alone(session, target)
    try:
        session.build(target)
    except CheckFailed as error:
        return TaskFailed(str(error))
    except BuildsysError as error:
        return TaskError(str(error))
    except Exception as error:  # the border: one line, with the traceback in a file
        return TaskError(session.keep_traceback(target, error))
    return None


def _run_alone(session: BuildSession, target: str) -> TaskFailed | TaskError | None:
    """Run a target in a process of its own: a fork of this one shares its state database."""
    command = (sys.executable, "-m", "buildsys", "build", "--single", target)
    code = subprocess.run(command, cwd=session.project.root, check=False).returncode
    kind = TaskFailed if code == CheckFailed.exit_code else TaskError
    return kind(f"`buildsys build {target}` ended with {code}") if code else None


def clean(session: BuildSession, name: str, dryrun: bool) -> None:
    """Remove the files of the targets of a name, each target once."""
    targets = [target for target in session.members(name) if target not in session.cleaned]
    session.cleaned.update(targets)
    try:
        remove_files(session, targets, dry_run=dryrun)
    except (BuildsysError, OSError) as error:
        stderr = guarded(sys.__stderr__)  # doit replaces sys.stderr during an action
        stderr.write(printable(f"ERROR: {error}\n"))
        raise SystemExit(BuildsysError.exit_code) from None
