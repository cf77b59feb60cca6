"""The border to doit: tasks, configuration and commands. The only module that imports it.

doit schedules and is the command line; whether a target is up to date is asked of our executor alone.
Tasks therefore have no ``file_dep`` and one ``uptodate`` callable, and doit's own database holds nothing
that matters but what ``doit ignore`` marks.
"""

from __future__ import annotations

import contextlib
import gc
import getopt
import inspect
import os
import sqlite3
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TextIO

from doit import Globals
from doit.cmd_base import Command, opt_dodo
from doit.cmd_clean import Clean as DoitClean
from doit.cmd_forget import Forget as DoitForget
from doit.cmd_ignore import Ignore as DoitIgnore
from doit.cmd_info import Info as DoitInfo
from doit.cmd_list import List as DoitList
from doit.cmd_run import Run as DoitRun
from doit.dependency import DatabaseException, SqliteDB
from doit.exceptions import InvalidCommand, InvalidDodoFile, TaskError, TaskFailed
from doit.runner import ERROR as TASK_ERROR
from doit.task import Task

from buildsys.errors import BuildsysError, CheckFailed, ManifestErrors, UsageError
from buildsys.front import commands
from buildsys.front.clean import remove_target_files
from buildsys.front.console import Reporter
from buildsys.front.doit_record import UnusableRecordError, clear_away, write_at_the_end
from buildsys.front.selection import Asked, select
from buildsys.front.session import Session
from buildsys.manifest.project import load_project

INTERRUPTED, BROKEN_PIPE = 130, 141
_STAGE_DOCS = {
    "build": "everything of every model (the default)",
    "operators": "make functions and libraries of custom operators",
    "export": "export to ONNX",
    "reference": "golden inputs and outputs of the original model",
    "surgery": "change graphs by the steps of their manifests",
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
    groups = [GroupTask(session, name, session.members_among(name, wanted)) for name in selection.groups]
    return [*groups, *(TargetTask(session, target, wanted) for target in selection.targets)]


class TargetTask(Task):  # type: ignore[misc]  # doit has no type information
    """One target of the graph as doit sees it, after those of ``others`` that it needs."""

    def __init__(self, session: Session, target: str, others: Container[str]) -> None:
        action = session.actions[target]
        build = os.path.relpath(session.project.build)
        super().__init__(
            target,
            [(_run_target, [session, target])],
            targets=[f"{build}/{output.path}" for output in action.outputs.values() if not output.optional],
            task_dep=[name for name in dict.fromkeys((*action.after, *action.order)) if name in others],
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
            subtask_of=stage if name != stage and stage != "build" else None,  # `doit list` tells every model
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
    by_stage: dict[str, list[str]] = {"build": list(session.actions)}
    by_variants: dict[str, list[str]] = {}
    for action in session.actions.values():
        by_stage.setdefault(action.stage, []).append(action.target)
        if action.variant:
            by_variants.setdefault(f"{action.stage}:{action.model}", []).append(action.target)
    by_model = {f"build:{model}": list(session.actions.of(model)) for model in session.project.models}
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
    except Exception as error:  # the border: what nobody expected is told in one line and kept in full
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        return TaskError(f"unexpected {told}; traceback: {os.path.relpath(session.keep_traceback(target, error))}")
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


def _leave_broken_pipe() -> int:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it exits
    return BROKEN_PIPE


class _WithoutTraceback:
    """Mixed into doit's commands: what people do wrong, Ctrl-C and a closed pipe end in one line or none."""

    dep_manager: Any  # doit's; None until its database is open

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
            return _leave_broken_pipe()
        except (DatabaseException, sqlite3.DatabaseError) as error:  # doit's; ours never comes here
            try:
                clear_away(Path(params["dep_file"]), error)
            except UnusableRecordError as problem:
                raise InvalidDodoFile(str(problem)) from None
            if self.dep_manager is not None:  # met in the middle
                raise InvalidDodoFile("doit's own record was damaged; run again") from None
        except (InvalidCommand, KeyError) as error:
            tasks = [task.name for task in getattr(self, "task_list", [])]
            asked = [getattr(error, "not_found", None) or "", *args]
            unknown = next((name for name in asked if name and "*" not in name and name not in tasks), None)
            if not tasks or unknown is None:
                raise
            near = commands.nearest(unknown, [*tasks, *self.also_known()])
            hint = f"nearest: {', '.join(near)}" if near else "`doit list --all` tells all of them"
            raise InvalidCommand(f"there is no target {unknown!r}; {hint}") from None
        return self.execute(params, args)  # with a new database


class Run(_WithoutTraceback, DoitRun):  # type: ignore[misc]
    """doit's run, with an exit code that tells a failed check from an error also under ``--continue``."""

    name = "run"
    asked: ClassVar[Callable[[], Asked] | None] = None  # while a run goes on; complete once the project is loaded

    def also_known(self) -> Sequence[str]:
        """Return the commands: `doit lst` comes here as a target that is to run."""
        names: Sequence[str] = self.loader.cmd_names
        return names

    def parse_execute(self, in_args: list[str]) -> Any:
        """Hand ``doit inspect:MODEL`` over: it is typed like a target, and is a command of ours."""
        if any(argument.startswith("inspect:") for argument in in_args):
            return Inspect(config=self.config, bin_name=self.bin_name).parse_execute(in_args)
        return super().parse_execute(in_args)

    def execute(self, params: Any, args: list[str]) -> Any:
        """Return 1 where doit counts the targets behind a failed check as errors."""
        Session.jobs = max(1, params["num_process"])
        Run.asked = partial(_asked, params, args)
        try:
            code = super().execute(params, args)
        finally:
            Run.asked = None
        session = getattr(self.loader.load_doit_config().get("reporter"), "session", None)
        return session.exit_code if code == TASK_ERROR and session and session.exit_code else code


def _asked(params: Any, names: Sequence[str]) -> Asked:
    reporter = params["reporter"]
    ours = isinstance(reporter, Reporter) or (isinstance(reporter, type) and issubclass(reporter, Reporter))
    everything = params["always"] or params["single"] or not ours or _anything_ignored()
    return Asked(names or params["default_tasks"], with_fresh=everything)


def _anything_ignored() -> bool:
    """Tell whether `doit ignore` may have marked a target: those behind it do not run either."""
    database = Globals.dep_manager.backend
    if not isinstance(database, SqliteDB):
        return True  # chosen with --backend; nobody knows how to ask it at once
    marked = "SELECT 1 FROM doit WHERE task_data LIKE '%\"ignore:\"%' LIMIT 1"
    return database._conn.execute(marked).fetchone() is not None


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

    def parse_execute(self, in_args: list[str]) -> Any:
        """Take options behind names as well: ``doit explain export:resnet50 --json``."""
        parser = self.cmdparser
        try:
            found, names = getopt.gnu_getopt(in_args, parser.get_short(), parser.get_long())
        except getopt.GetoptError as error:
            raise InvalidCommand(f"{error}; `doit help {self.name}` tells the options") from None
        flags = {option for option, _ in found if parser.get_option(option)[0].type is bool}
        options = [word for pair in found for word in (pair[:1] if pair[0] in flags else pair)]
        return super().parse_execute([*options, "--", *names])

    def execute(self, params: Any, args: list[str]) -> int:
        """Print the answer; an expected failure is one line, with exit code 3 where the command was wrong."""
        try:
            code = self.tell(_project_root(params), params, args)
            sys.stdout.flush()  # a closed pipe is met here, not when Python exits
            return code
        except BuildsysError as error:
            if error.exit_code == UsageError.exit_code:
                raise InvalidCommand(str(error)) from None
            sys.stderr.write(f"ERROR: {error}\n")
            return error.exit_code
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            return _leave_broken_pipe()
        except OSError as error:  # a full disk, most likely: of the temporary folder, or behind stdout
            told = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
            sys.stderr.write(f"ERROR: {told}\n")
            return BuildsysError.exit_code

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print what the command answers; return the exit code."""
        del params
        sys.stdout.write(self.answer(root, args))
        return 0


def _project_root(params: Any) -> Path:
    dodo = Path(params["dodoFile"]).resolve()
    if not dodo.is_file():
        raise InvalidDodoFile(f"there is no {params['dodoFile']} here; name it with -f")
    return dodo.parent


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


class Cache(_ProjectCommand):
    """``doit cache``."""

    doc_purpose = "show, verify or collect what is stored of earlier builds"
    doc_usage = "[show | verify | gc]"
    doc_description = (
        "show    what each stage has in the store (the default)\n"
        "verify  read everything; what is damaged goes into quarantine (exit code 1)\n"
        "gc      remove what the manifests here do not reach, or only what is too old or too much of it"
    )
    cmd_options = (
        opt_dodo,
        {"name": "json", "long": "json", "type": bool, "default": False, "help": "print JSON"},
        {"name": "older_than", "long": "older-than", "type": str, "default": "", "help": "gc: unused that long (30d)"},
        {"name": "max_size", "long": "max-size", "type": str, "default": "", "help": "gc: down to this size (20GiB)"},
        {"name": "keep_refs", "long": "keep-refs", "type": str, "default": "",
         "help": "gc: keep what the manifests of these git revisions reach, separated by commas"},
        {"name": "dry_run", "long": "dry-run", "type": bool, "default": False, "help": "gc: tell, and remove nothing"},
    )  # fmt: skip

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print the answer; return 1 when something in the store is damaged."""
        text, code = commands.cache(root, args, params)
        sys.stdout.write(text)
        return code


_OPT_JSON = {"name": "json", "long": "json", "type": bool, "default": False, "help": "one JSON document on stdout"}


class Explain(_ProjectCommand):
    """``doit explain``."""

    doc_purpose = "tell why targets are stale, or when and why they were built"
    doc_usage = "[TARGET ...]"
    cmd_options = (opt_dodo, _OPT_JSON)

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print the explanations."""
        from buildsys.front.explaining import explain_targets

        explain_targets(root, args, sys.stdout, as_json=params["json"])
        return 0


class Plan(_ProjectCommand):
    """``doit plan``."""

    doc_purpose = "tell what would run and how long it usually takes, or what differs from a git revision"
    doc_usage = "[TARGET ...]"
    cmd_options = (
        opt_dodo,
        _OPT_JSON,
        {"name": "since", "long": "since", "type": str, "default": None, "help": "compare with a git revision"},
        {"name": "jobs", "short": "n", "type": str, "default": "1", "help": "the targets that would run at a time"},
    )

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print the plan."""
        if params["since"] is not None:
            from buildsys.front.since import plan_since

            plan_since(root, args, sys.stdout, revision=params["since"], as_json=params["json"])
        else:
            from buildsys.front.planning import plan_run

            plan_run(root, args, sys.stdout, jobs=_jobs(params["jobs"]), as_json=params["json"])
        return 0


def _jobs(asked: str) -> int:
    if not asked.isdecimal() or int(asked) < 1:
        raise UsageError(f"-n takes a number from 1 on, not {asked!r}")
    return int(asked)


class Ops(_ProjectCommand):
    """``doit ops``."""

    doc_purpose = "tell which operators are translated, known and run by what is installed here"
    doc_usage = "[OPERATOR ...]"
    cmd_options = (
        opt_dodo,
        _OPT_JSON,
        {"name": "all", "long": "all", "type": bool, "default": False, "help": "all operators"},
        {"name": "model", "long": "model", "type": str, "default": "", "help": "those in a built model's graph"},
    )

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print rows of the table, or a summary."""
        options = {"model": params["model"], "everything": params["all"], "as_json": params["json"]}
        sys.stdout.write(commands.ops(root, args, **options))
        return 0


class Inspect(_ProjectCommand):
    """``doit inspect:MODEL[:STAGE]``."""

    doc_purpose = "show a graph: operators, tensors, weights, multiply-accumulates; or draw it"
    doc_usage = "MODEL[:STAGE]"
    doc_description = (
        "also written as `doit inspect:MODEL:STAGE`\n"
        "STAGE is export, simplify (the default), convert:PRECISION or engine:NAME, as it was built last;\n"
        "STAGE~1 is the graph before that, STAGE@REV the one built from a git revision"
    )
    cmd_options = (
        opt_dodo,
        _OPT_JSON,
        {"name": "nodes", "long": "nodes", "type": bool, "default": False, "help": "tell every node"},
        {"name": "node", "long": "node", "type": str, "default": "", "help": "all of the node of this name"},
        {"name": "tensor", "long": "tensor", "type": str, "default": "", "help": "all of the tensor of this name"},
        {"name": "svg", "long": "svg", "type": str, "default": "", "help": "draw the graph into this file"},
        {"name": "begin", "long": "from", "type": str, "default": "", "help": "draw from this node or tensor on"},
        {"name": "end", "long": "to", "type": str, "default": "", "help": "draw up to this node or tensor"},
        {"name": "depth", "long": "depth", "type": str, "default": "", "help": "draw so many nodes from there"},
    )

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print the graph, or draw it."""
        from buildsys.front.inspect_command import Asked, asked_name, inspect_graph

        options = {name: params[name] for name in ("nodes", "node", "tensor", "svg", "begin", "end", "depth")}
        inspect_graph(root, Asked(asked_name(args), params["json"], **options), sys.stdout)
        return 0


class Diff(_ProjectCommand):
    """``doit diff MODEL A B``."""

    doc_purpose = "tell what differs between two graphs of a model: of two stages, or of two builds"
    doc_usage = "MODEL [A B]"
    doc_description = (
        "A and B are names of graphs as in `doit inspect`: export, simplify, convert:PRECISION, engine:NAME;\n"
        "simplify~1 is the graph before the last one, simplify@REV the one built from a git revision;\n"
        "without them, export and simplify"
    )
    cmd_options = (opt_dodo, _OPT_JSON)

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print the differences."""
        from buildsys.front.diff_command import diff_graphs

        diff_graphs(root, args, sys.stdout, as_json=params["json"])
        return 0


class Netron(_ProjectCommand):
    """``doit netron MODEL[:STAGE]``."""

    doc_purpose = "serve a graph in the netron viewer until Ctrl-C"
    doc_usage = "MODEL[:STAGE]"
    doc_description = "STAGE is a name of a graph as in `doit inspect`, simplify unless given"
    cmd_options = (
        opt_dodo,
        {"name": "port", "long": "port", "type": str, "default": "", "help": "the port, 8080 or the next free one"},
        {"name": "browse", "long": "browse", "type": bool, "default": False, "help": "open a browser"},
    )

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Serve until interrupted."""
        from buildsys.front.netron_command import serve

        if len(args) != 1:
            raise UsageError("netron takes one MODEL or MODEL:STAGE", "for example `doit netron resnet50:export`")
        serve(root, args[0], sys.stdout, port=params["port"], browse=params["browse"])
        return 0


class Schema(_ProjectCommand):
    """``doit schema``."""

    doc_purpose = "write the JSON Schemas for editors into configs/schema"
    answer = staticmethod(commands.schema)


class Repro(_ProjectCommand):
    """``doit repro MODEL [STAGE…]``."""

    doc_purpose = "build a model twice in clean folders and tell which artifacts are byte-equal"
    doc_usage = "MODEL [STAGE ...]"
    cmd_options = (
        opt_dodo,
        {"name": "until", "long": "until", "type": str, "default": "", "help": "the last stage to build"},
        {"name": "json", "long": "json", "type": bool, "default": False, "help": "print it for programs"},
        {"name": "keep", "long": "keep", "type": bool, "default": False, "help": "keep both folders, and say where"},
    )

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print the comparison; return 1 where something differs that should not."""
        options = {"until": params["until"], "as_json": params["json"], "keep": params["keep"]}
        text, code = commands.repro(root, args, **options)
        sys.stdout.write(text)
        return code
