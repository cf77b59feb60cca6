"""buildsys build and doit run, also typed without a command: build targets."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from doit import Globals
from doit.cmd_run import Run as DoitRun
from doit.dependency import SqliteDB
from doit.exceptions import InvalidCommand, InvalidDodoFile
from doit.runner import ERROR as TASK_ERROR

from buildsys.cli.command import INTERRUPTED
from buildsys.cli.commands.doit_commands import FilteredCommand
from buildsys.cli.console.reporter import Reporter
from buildsys.cli.doit_options import option
from buildsys.cli.interruption import on_interruption
from buildsys.cli.project_root import typed_path
from buildsys.cli.session import Session
from buildsys.errors import ManifestErrors, UsageError
from buildsys.project.plan import model_of
from buildsys.store.ledger import utc_now
from buildsys.system.printable import printable

if TYPE_CHECKING:
    from buildsys.report.run_results import RunResults

SINCE = option("since", "only what differs from a git revision")
JUNIT = option("junit", "write the results as JUnit XML into a file")
SUMMARY = option("summary", "write a summary in Markdown into a file")
RESULTS = option("results", "write the results as JSON into a file")
ON = option("on", "build on an executor of project.yaml")
FETCH = option("fetch", "with --on: copy engines and reports into the build folder", flag=True)
REMEASURE = option("remeasure", "measure benchmarks and gates again", flag=True)
_WAITING_THREADS = 16  # besides those of -n


class Requested(NamedTuple):
    """The names on the command line of a run."""

    names: Sequence[str]
    every_task: bool  # targets that are up to date must become tasks as well


class Run(FilteredCommand, DoitRun):  # type: ignore[misc]
    """doit's run, with our exit codes and safe interruption."""

    name = "run"
    doc_purpose = "build targets"
    # during a run; called once the project is loaded
    requested: ClassVar[Callable[[Session], Requested] | None] = None
    leaves_out: ClassVar[bool] = False  # broken manifests are left out of the project

    @property
    def cmd_options(self) -> tuple[dict[str, Any], ...]:
        """Doit's options, and ours."""
        return (*super().cmd_options, SINCE, JUNIT, SUMMARY, RESULTS, REMEASURE, ON, FETCH)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.started = ""
        self._files: Mapping[str, str] = {}  # option -> file about the run
        self._ignored: set[str] = set()

    def get_reporters(self) -> dict[str, Any]:
        """Return doit's reporters, with our JSON reporter."""
        from buildsys.cli.console.json_reporter import JsonReporter

        reporters: dict[str, Any] = super().get_reporters()
        return {**reporters, "json": JsonReporter}

    def other_names(self) -> Sequence[str]:
        """Return the commands: `buildsys build lst` arrives here as a target to run."""
        names: Sequence[str] = self.loader.cmd_names
        return names

    def parse_execute(self, in_args: list[str]) -> Any:
        """Refuse options of ``buildsys run``."""
        if any(argument.partition("=")[0] == "--input" for argument in in_args):
            problem = f"{self.name} builds, it takes no --input; type `buildsys run`"
            raise InvalidCommand(problem)
        return super().parse_execute(in_args)

    def execute(self, params: Any, args: list[str]) -> Any:
        """Let the tasks be selected by the command line."""
        self.started, Session.began = self.started or utc_now(), time.monotonic()
        names = ("junit", "summary", "results")
        self._files = {name: params[name] for name in names if params[name]}
        if isinstance(params["outfile"], str):
            params["outfile"] = str(typed_path(params["outfile"]))
        if self._files:
            from buildsys.cli.run_files import check_files, write_unfinished

            self._files = check_files(self._files)
            # not those of an earlier run, whatever happens
            if code := write_unfinished(self._files, self.started):
                return code
        if params["on"]:
            return self._build_on(params, args)
        Session.jobs, Session.always = max(1, params["num_process"]), params["always"]
        if Session.jobs > 1:
            from buildsys.system.devices import gpu_uuids

            # a thread that waits for a GPU must not keep the processor idle
            params["num_process"] += _WAITING_THREADS if gpu_uuids() else 0
        Run.requested = partial(self.request, params, args)
        try:
            return super().execute(params, args)
        except (InvalidCommand, InvalidDodoFile) as error:
            if self._files:
                write_unfinished(self._files, self.started, str(error))
            raise
        finally:
            Run.requested = None

    def _build_on(self, params: Any, names: Sequence[str]) -> int:
        """Build on other machines."""
        from buildsys.cli.build_on import build_on

        try:
            root, options = Path(params["dodoFile"]).resolve().parent, Namespace(**params)
            return build_on(root, names, options, self._files)
        except ManifestErrors as error:
            raise InvalidDodoFile(printable(str(error))) from None
        except UsageError as error:
            raise InvalidCommand(printable(str(error))) from None

    @wraps(DoitRun._execute)  # doit reads the options from its signature
    def _execute(self, **options: Any) -> Any:
        """Run the targets and write the files about the run."""
        reporter = self.loader.load_doit_config().get("reporter")
        session: Session | None = getattr(reporter, "session", None)
        if session is None:
            return super()._execute(**options)
        if self.needs_results:
            ignores = self.dep_manager.status_is_ignore
            self._ignored = {task.name for task in self.task_list if ignores(task)}
        code = self._run(session, options)
        return self.finish(session, code) if self.needs_results else code

    def _run(self, session: Session, options: dict[str, Any]) -> int:
        """Return 1 for a failed check; doit counts targets downstream as errors."""
        try:
            with on_interruption(session.interrupt):
                code: int = super()._execute(**options)
        except KeyboardInterrupt:
            session.interrupted = session.interrupted or INTERRUPTED
            return session.interrupted
        if code and not session.checked_stale_outputs:  # with another reporter
            ends = session.finished.items()
            failed = dict.fromkeys(model_of(name) for name, end in ends if end.status == "failed")
            if failed:
                from buildsys.cli.failure_report import report_failure

                report_failure(session, failed)
        if session.finished and not session.has_updated_pages:
            from buildsys.cli.html_pages import CANNOT_WRITE, update_pages

            models = dict.fromkeys(model_of(target) for target in session.finished)
            line = update_pages(session, models)
            if line.startswith(CANNOT_WRITE):  # stdout is the other reporter's
                sys.stderr.write(printable(f"{line}\n"))
        if session.finished:
            from buildsys.cli.store_limit import enforce_limit

            session.close()  # the last results are on their way into the store
            enforce_limit(session.project)
        return session.exit_code if code == TASK_ERROR and session.exit_code else code

    @property
    def needs_results(self) -> bool:
        """True if files are written about the run."""
        return bool(self._files)

    def results(self, session: Session, since: str = "") -> RunResults:
        """Return the results of all targets of this run."""
        from buildsys.cli.run_files import collect_results

        targets = dict.fromkeys(session.up_to_date_targets)
        waiting = list(self.control.selected_tasks) if hasattr(self, "control") else []
        while waiting:
            name = waiting.pop()
            if name not in targets:
                targets[name] = None
                waiting += self.control.tasks[name].task_dep
        return collect_results(
            session,
            [name for name in targets if name in session.actions],
            self._ignored,
            started=self.started,
            seconds=session.seconds or time.monotonic() - session.began,
            since=since,
        )

    def finish(self, session: Session, code: int) -> int:
        """Write the files about the run; return its exit code."""
        from buildsys.cli.run_files import write_files

        return max(code, write_files(self._files, self.results(session), "Build"))

    def request(self, params: Any, names: Sequence[str], session: Session) -> Requested:
        """Return the command line's request for a loaded project."""
        session.remeasures_all = params["remeasure"]
        reporter = params["reporter"]
        kind = reporter if isinstance(reporter, type) else type(reporter)
        forced = params["always"] or params["single"] or params["remeasure"]
        every_task = forced or not issubclass(kind, Reporter)
        database = Globals.dep_manager.backend
        if not isinstance(database, SqliteDB):
            every_task = True  # chosen with --backend; it has no fast query for ignored targets
        elif not every_task:
            marked = "SELECT 1 FROM doit WHERE task_data LIKE '%\"ignore:\"%' LIMIT 1"
            every_task = database._conn.execute(marked).fetchone() is not None
        return Requested(names or params["default_tasks"], every_task)


class Build(Run):
    """The run of ``buildsys build``; doit has a target of this name."""

    name = "build"
    doc_purpose = "build models, engines and other targets; without a name everything"
    doc_usage = "[TARGET ...]"
