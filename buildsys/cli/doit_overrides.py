"""doit's own commands: with errors of one line, and a run that knows what its command line asks for."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from doit import Globals
from doit.cmd_clean import Clean as DoitClean
from doit.cmd_forget import Forget as DoitForget
from doit.cmd_ignore import Ignore as DoitIgnore
from doit.cmd_info import Info as DoitInfo
from doit.cmd_list import List as DoitList
from doit.cmd_run import Run as DoitRun
from doit.dependency import DatabaseException, SqliteDB
from doit.exceptions import InvalidCommand, InvalidDodoFile
from doit.runner import ERROR as TASK_ERROR

from buildsys.cli.console.reporter import Reporter
from buildsys.cli.doit_database import UnusableRecordError, clear_away
from buildsys.cli.session import Session
from buildsys.cli.target_selection import Asked
from buildsys.plan.project_plan import model_of
from buildsys.system.suggestions import nearest

INTERRUPTED, BROKEN_PIPE = 130, 141


def leave_broken_pipe() -> int:
    """Return the exit code where nobody reads what is printed any more."""
    drop_unwritten()
    return BROKEN_PIPE


def drop_unwritten() -> None:
    """Give up what stdout cannot take, else Python complains when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
            return leave_broken_pipe()
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
            unknown = next(
                (name for name in asked if name and "*" not in name and name not in tasks), None
            )
            if not tasks or unknown is None:
                raise
            near = nearest(unknown, [*tasks, *self.also_known()])
            hint = f"nearest: {', '.join(near)}" if near else "`doit list --all` tells all of them"
            raise InvalidCommand(f"there is no target {unknown!r}; {hint}") from None
        return self.execute(params, args)  # with a new database


class Run(_WithoutTraceback, DoitRun):  # type: ignore[misc]
    """doit's run, with an exit code that tells a failed check from an error also under ``--continue``."""

    name = "run"
    asked: ClassVar[Callable[[], Asked] | None] = (
        None  # while a run goes on; complete once the project is loaded
    )

    def also_known(self) -> Sequence[str]:
        """Return the commands: `doit lst` comes here as a target that is to run."""
        names: Sequence[str] = self.loader.cmd_names
        return names

    def parse_execute(self, in_args: list[str]) -> Any:
        """Hand ``doit inspect:MODEL`` over: it is typed like a target, and is a command of ours."""
        if any(argument.startswith("inspect:") for argument in in_args):
            from buildsys.cli.commands import (
                Inspect,
            )  # which needs this module; and a run does not need that one

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
        session: Session | None = getattr(
            self.loader.load_doit_config().get("reporter"), "session", None
        )
        if code and session and not session.looked_back:  # with another reporter
            _look_back(session)
        return session.exit_code if code == TASK_ERROR and session and session.exit_code else code


def _look_back(session: Session) -> None:
    failed = dict.fromkeys(
        model_of(name) for name, end in session.finished.items() if end.status == "failed"
    )
    if failed:
        from buildsys.cli.failures.stale_outputs import after_failure

        after_failure(session, failed)


def _asked(params: Any, names: Sequence[str]) -> Asked:
    reporter = params["reporter"]
    ours = isinstance(reporter, Reporter) or (
        isinstance(reporter, type) and issubclass(reporter, Reporter)
    )
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
