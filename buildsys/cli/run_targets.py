"""Runs of targets by doit's scheduler, for ``buildsys build`` and ``buildsys nightly``."""

from __future__ import annotations

import configparser
import sys
from collections.abc import Sequence
from typing import TextIO

from doit.api import run_tasks
from doit.cmd_base import ModuleTaskLoader
from doit.doit_cmd import DoitMain
from doit.exceptions import InvalidCommand, InvalidDodoFile, InvalidTask

from buildsys.cli.session import Session
from buildsys.cli.tasks import BACKENDS, BUILD, ProjectTasks, doit_config
from buildsys.errors import StageError, UsageError

_WAITING_THREADS = 16  # besides those of -j


def run_targets(
    session: Session,
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
    if single:
        names = [target for name in names for target in session.members(name)]
    needs_tasks = force or single or session.remeasures_all or bool(session.rebuilds)
    tasks.choose_names(names, skip_fresh=not needs_tasks)
    if single:
        session.requested = names
    if BUILD in names:  # one model after another: doit goes breadth first through one group
        names = [*(f"build:{model}" for model in session.project.models), *names]
    if jobs > 1:
        from buildsys.system.devices import gpu_uuids

        # a thread that waits for a GPU must not keep the processor idle
        jobs += _WAITING_THREADS if gpu_uuids() else 0
    config = {
        **doit_config(session),
        "default_tasks": list(names),
        "num_process": jobs,
        "continue": keep_going,
        "always": force,
        "single": single,
        "outfile": out or sys.stdout,
    }
    loader = ModuleTaskLoader({"DOIT_CONFIG": config, "task_targets": tasks})
    try:
        DoitMain(loader)  # reads the configuration
    except (ValueError, configparser.Error) as error:
        problem = f"cannot read pyproject.toml or doit.cfg: {error}".splitlines()[0]
        raise UsageError(problem, "correct it, doit reads both") from None
    try:
        code = run_tasks(loader, {}, extra_config={"BACKEND": BACKENDS})
    except SystemExit as end:  # the reporter knows the code better than doit
        code = end.code
    except (InvalidCommand, InvalidDodoFile, InvalidTask) as error:
        raise StageError(str(error)) from None
    return code if isinstance(code, int) else 0
