"""doit list, info, clean, forget and ignore, with short errors.

A damaged database of doit is replaced: it holds nothing that matters except the marks of
``doit ignore``.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from doit.cmd_clean import Clean as DoitClean
from doit.cmd_forget import Forget as DoitForget
from doit.cmd_ignore import Ignore as DoitIgnore
from doit.cmd_info import Info as DoitInfo
from doit.cmd_list import List as DoitList
from doit.dependency import DatabaseException
from doit.exceptions import InvalidCommand, InvalidDodoFile

from buildsys.cli.command import BROKEN_PIPE, INTERRUPTED, drop_unwritten
from buildsys.cli.doit_options import filter_of, filter_options, options_first
from buildsys.cli.model_filter import ModelFilter
from buildsys.cli.project_root import shown_path
from buildsys.errors import BuildsysError
from buildsys.stages.table import REPORT
from buildsys.system.printable import printable
from buildsys.system.suggestions import nearest

if TYPE_CHECKING:
    from buildsys.cli.session import Session


_LETTERS = {"unavailable": "N", "noisy": "Y"}  # of `buildsys list --status`
_EVERYTHING = ("cleanall", "forget_all")  # doit's options that ignore the names


class DoitCommand:
    """Mixin for doit's commands: errors of at most one line."""

    dep_manager: Any  # doit's; None until its database is open
    # on the command line; replaced by full names once the project is loaded
    names: ClassVar[list[str]] = []
    only: ClassVar[ModelFilter] = ModelFilter()
    since: ClassVar[str] = ""  # of ``buildsys build --since``

    def other_names(self) -> Sequence[str]:
        """Return suggestions for an unknown target, besides targets."""
        return ()

    def parse_execute(self, in_args: list[str]) -> Any:
        """Accept options after names as well: ``buildsys build resnet50 -n 2``."""
        command: Any = super()  # doit's, next in the bases
        return command.parse_execute(options_first(self, in_args))

    def execute(self, params: Any, args: list[str]) -> Any:
        """Run the command; suggest the nearest names for an unknown one."""
        DoitCommand.names, DoitCommand.only = args, filter_of(params)
        DoitCommand.since = params.get("since") or ""
        if (DoitCommand.only or DoitCommand.since) and not args:
            args.append("build")  # replaced by what is selected
        for everything in _EVERYTHING if DoitCommand.only else ():
            if everything in params:
                params[everything] = False
        try:
            return super().execute(params, args)  # type: ignore[misc]  # of doit, next in the bases
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            drop_unwritten()
            return BROKEN_PIPE
        except BuildsysError as error:  # of our own state, e.g. locked by another process
            sys.stderr.write(printable(f"ERROR: {error}\n"))
            return error.exit_code
        except (DatabaseException, sqlite3.DatabaseError) as error:  # our own is handled elsewhere
            _set_aside(Path(params["dep_file"]), error)
            if self.dep_manager is not None:  # found only in the middle
                raise InvalidDodoFile("doit's database was damaged; run again") from None
        except (InvalidCommand, KeyError) as error:
            tasks = [task.name for task in getattr(self, "task_list", [])]
            names = [getattr(error, "not_found", None) or "", *args]
            unknown = next((n for n in names if n and "*" not in n and n not in tasks), None)
            if not tasks or unknown is None:
                raise
            models = [name.removeprefix("build:") for name in tasks if name.startswith("build:")]
            near = nearest(unknown, [*tasks, *models, *self.other_names()])
            hint = "`buildsys list --all` lists all targets"
            hint = f"nearest: {', '.join(near)}" if near else hint
            raise InvalidCommand(printable(f"there is no target {unknown!r}; {hint}")) from None
        finally:
            DoitCommand.names, DoitCommand.only, DoitCommand.since = [], ModelFilter(), ""
        return self.execute(params, args)  # with a new database


class FilteredCommand(DoitCommand):
    """Mixin for commands on targets of several models."""

    @property
    def cmd_options(self) -> tuple[dict[str, Any], ...]:
        """Doit's options, and the filter."""
        command: Any = super()
        return (*command.cmd_options, *filter_options())


def _set_aside(path: Path, error: BaseException) -> None:
    """Rename a damaged database for doit to make a new one.

    Raises: InvalidDodoFile: it is not damaged but unusable, or cannot be renamed.
    """
    cause = error.__cause__ or error.__context__ or error
    unusable = f"cannot use doit's database {path}: {cause}"
    hint = "its folder must be writable and its disk not full"
    # not a database, or not doit's, in contrast to a lock or a full disk
    if type(cause) is not sqlite3.DatabaseError and not str(cause).startswith(
        ("no such", "table doit has")
    ):
        raise InvalidDodoFile(f"{unusable}; {hint}") from None
    aside = path.with_name(f"{path.name}.broken-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}")
    try:
        path.rename(aside)
        # sqlite would roll the journal back into the new database
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
    except FileNotFoundError:  # another doit was faster
        return
    except OSError as problem:
        raise InvalidDodoFile(
            f"{unusable}, and it cannot be renamed: {problem.strerror}; {hint}"
        ) from None
    lost = "only the marks of `doit ignore` are lost"
    warning = f"doit's database {path} is not readable ({cause}); renamed to {aside.name}: {lost}"
    sys.stderr.write(printable(f"buildsys: warning: {warning}\n"))


class List(FilteredCommand, DoitList):  # type: ignore[misc]
    """doit list."""

    doc_purpose = "list models and stages, or all targets"
    groups_only: ClassVar[bool] = False  # while it lists neither targets nor their state

    def execute(self, params: Any, args: list[str]) -> Any:
        """List groups without making a task of every target."""
        if filter_of(params) and params["subtasks"] and not args:
            args.append("*")
        List.groups_only = not (args or params["subtasks"] or params["status"])
        try:
            return super().execute(params, args)
        finally:
            List.groups_only = False

    def _print_task(
        self, template: str, task: Any, status: bool, list_deps: bool, tasks: Mapping[str, Any]
    ) -> None:
        """Print one task, with N for unavailable and Y for noisy."""
        if status and not task.has_subtask and not self.dep_manager.status_is_ignore(task):
            session = task.session
            if session.are_up_to_date([task.name]):
                letter = _LETTERS.get(session.shortfall(task.name), "{status}")
                template = template.replace("{status}", letter)
        super()._print_task(template, task, status, list_deps, tasks)


class Info(DoitCommand, DoitInfo):  # type: ignore[misc]
    """doit info."""

    doc_purpose = "show the dependencies and the state of a target"

    @wraps(DoitInfo._execute)  # doit reads the options from its signature
    def _execute(self, pos_args: Sequence[str], hide_status: bool = False) -> Any:
        """Print the target, and the reason if it is unavailable or noisy."""
        code = super()._execute(pos_args, hide_status)
        session, target = self.task_list[0].session, pos_args[0]
        if not hide_status and (shortfall := session.shortfall(target)):
            reason = printable(session.recorded_reason(target))
            self.outstream.write(f"\n{shortfall}: {reason}\n")
        return code


class Clean(FilteredCommand, DoitClean):  # type: ignore[misc]
    """doit clean."""

    doc_purpose = "remove the files of targets"

    @wraps(DoitClean._execute)  # doit reads the options from its signature
    def _execute(self, **options: Any) -> Any:
        """Remove the files, and the pages of models with removed reports."""
        code = super()._execute(**options)
        session: Session | None = next((task.session for task in self.task_list), None)
        names = [target.split(":", 2) for target in session.cleaned] if session else []
        models = {model for stage, model, *_ in names if stage == REPORT}
        if session and models:
            from buildsys.cli.html_pages import remove_pages

            for path in remove_pages(session, models, dry_run=options["dryrun"]):
                self.outstream.write(f"removing {shown_path(path)}\n")
        return code


class Forget(FilteredCommand, DoitForget):  # type: ignore[misc]
    """doit forget."""

    doc_purpose = "drop the records of targets, to build them again"


class Ignore(FilteredCommand, DoitIgnore):  # type: ignore[misc]
    """doit ignore."""

    doc_purpose = "skip targets and everything downstream until they are forgotten"

    @wraps(DoitIgnore._execute)  # doit reads the options from its signature
    def _execute(self, pos_args: Sequence[str]) -> Any:
        """Mark all targets of the names, as doit knows no subtasks of models."""
        members = (self.task_list[0].session.members(name) or [name] for name in pos_args)
        return super()._execute(list(dict.fromkeys(chain.from_iterable(members))))
