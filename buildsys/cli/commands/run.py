"""doit run, also typed as plain ``doit``: build targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, ClassVar, NamedTuple

from doit import Globals
from doit.cmd_run import Run as DoitRun
from doit.dependency import SqliteDB
from doit.runner import ERROR as TASK_ERROR

from buildsys.cli.command import INTERRUPTED, TAG
from buildsys.cli.commands.doit_commands import DoitCommand
from buildsys.cli.console.reporter import Reporter
from buildsys.cli.interruption import on_interruption
from buildsys.cli.session import Session
from buildsys.plan.project_plan import model_of


class Requested(NamedTuple):
    """The names on the command line of a run."""

    names: Sequence[str]
    every_task: bool  # targets that are up to date must become tasks as well


class Run(DoitCommand, DoitRun):  # type: ignore[misc]
    """doit's run, with our exit codes and safe interruption."""

    name = "run"
    doc_purpose = "build targets"
    # during a run; called once the project is loaded
    requested: ClassVar[Callable[[], Requested] | None] = None

    @property
    def cmd_options(self) -> tuple[dict[str, Any], ...]:
        """Doit's options, and ours."""
        return (*DoitRun.cmd_options, {**TAG, "default": []})

    def get_reporters(self) -> dict[str, Any]:
        """Return doit's reporters, with our JSON reporter."""
        from buildsys.cli.console.json_reporter import JsonReporter

        reporters: dict[str, Any] = super().get_reporters()
        return {**reporters, "json": JsonReporter}

    def other_names(self) -> Sequence[str]:
        """Return the commands: `doit lst` arrives here as a target to run."""
        names: Sequence[str] = self.loader.cmd_names
        return names

    def parse_execute(self, in_args: list[str]) -> Any:
        """Pass on ``doit inspect:MODEL`` and ``doit validate:MODEL --stress 50`` to commands."""
        if any(argument.startswith("inspect:") for argument in in_args):
            from buildsys.cli.commands.inspect import Inspect

            return Inspect(config=self.config, bin_name=self.bin_name).parse_execute(in_args)
        if any(argument.startswith("--stress") for argument in in_args):
            from buildsys.cli.commands.stress import Stress

            arguments = [argument.replace("--stress", "--count", 1) for argument in in_args]
            stress = Stress(config=self.config, bin_name=self.bin_name)
            return stress.parse_execute(arguments)
        return super().parse_execute(in_args)

    def execute(self, params: Any, args: list[str]) -> Any:
        """Let the tasks be selected by the command line."""
        Session.jobs, Session.always = max(1, params["num_process"]), params["always"]
        Run.requested = partial(_requested, params, args)
        try:
            return super().execute(params, args)
        finally:
            Run.requested = None

    @wraps(DoitRun._execute)  # doit reads the options from its signature
    def _execute(self, **options: Any) -> Any:
        """Return 1 for a failed check; doit counts targets downstream as errors."""
        reporter = self.loader.load_doit_config().get("reporter")
        session: Session | None = getattr(reporter, "session", None)
        if session is None:
            return super()._execute(**options)
        try:
            with on_interruption(session.interrupt):
                code = super()._execute(**options)
        except KeyboardInterrupt:
            return session.interrupted or INTERRUPTED
        if code and not session.checked_stale_outputs:  # with another reporter
            ends = session.finished.items()
            failed = dict.fromkeys(model_of(name) for name, end in ends if end.status == "failed")
            if failed:
                from buildsys.cli.failure_report import report_failure

                report_failure(session, failed)
        return session.exit_code if code == TASK_ERROR and session.exit_code else code


def _requested(params: Any, names: Sequence[str]) -> Requested:
    reporter = params["reporter"]
    kind = reporter if isinstance(reporter, type) else type(reporter)
    every_task = params["always"] or params["single"] or not issubclass(kind, Reporter)
    database = Globals.dep_manager.backend
    if not isinstance(database, SqliteDB):
        every_task = True  # chosen with --backend; it has no fast query for ignored targets
    elif not every_task:
        marked = "SELECT 1 FROM doit WHERE task_data LIKE '%\"ignore:\"%' LIMIT 1"
        every_task = database._conn.execute(marked).fetchone() is not None
    return Requested(names or params["default_tasks"], every_task)
