"""buildsys debug: one stage in the foreground, or the nodes that make an engine inaccurate."""

from __future__ import annotations

import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from buildsys.cli.command import add_json, add_names, positive_integer, print_lines
from buildsys.cli.fp32_nodes import find_fp32_nodes
from buildsys.cli.project_root import shown_path, typed_path
from buildsys.cli.session import Session
from buildsys.cli.worker_pool import open_pool
from buildsys.errors import CheckFailed, StageError, Unavailable, UsageError, with_hint
from buildsys.execution.freshness import FRESH, is_required
from buildsys.execution.local_runs import hold_devices, stage_job
from buildsys.plan.action import Action
from buildsys.report.formatting import duration
from buildsys.stages.table import ENGINE
from buildsys.store.locks import LockHolder, Locks
from buildsys.workers.pool import JobReply

if TYPE_CHECKING:
    from buildsys.workers.job import Job


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys debug``."""
    add_names(parser, "TARGET | --fp32-nodes MODEL:ENGINE")
    parser.add_argument(
        "--pdb",
        action="store_true",
        help="open the Python debugger where an exception was raised",
    )
    parser.add_argument(
        "--keep",
        default="",
        help="new folder for the outputs; without it they are removed",
    )
    parser.add_argument(
        "--fp32-nodes",
        action="store_true",
        help="find the nodes that must stay in fp32 for an engine within its limits",
    )
    parser.add_argument(
        "--limit", type=positive_integer, default=600, help="--fp32-nodes: seconds for the search"
    )
    add_json(parser)


def run(options: Namespace) -> int:
    """Return the exit code of a build with this result."""
    if options.fp32_nodes:
        return find_fp32_nodes(options)
    if options.json:
        raise UsageError("a stage in the foreground prints its log, not JSON", "leave out --json")
    session = Session.read_only(options.root)
    action = session.actions[session.one_target("debug", options.names)]
    _check_inputs(session, action)
    folder_to_keep = typed_path(options.keep).absolute() if options.keep else None
    if folder_to_keep is not None and folder_to_keep.exists():
        raise UsageError(f"--keep: {options.keep} exists", "name a new folder")
    with TemporaryDirectory(prefix="buildsys-debug-") as folder:
        outputs = Path(folder) / "outputs"
        job = _job(session, action, Path(folder), outputs)
        reply = _run(session, action, job, debugger=options.pdb)
        if folder_to_keep is not None:
            shutil.copytree(outputs, folder_to_keep)
    took = f"{reply.status} after {duration(reply.seconds)}"
    reason = with_hint(reply.reason, reply.hint)
    place = (
        f"its outputs are in {shown_path(folder_to_keep)}"
        if folder_to_keep
        else "nothing was published"
    )
    print_lines([*f"{action.target}: {took}{reason and ': '}{reason}".splitlines(), place])
    return _exit_code(action, reply.status)


def _check_inputs(session: Session, action: Action) -> None:
    """Warn about stale inputs. Raises: UsageError: one does not exist."""
    for ref in action.inputs.values():
        if not ref.optional and not (session.project.build / ref.path).exists():
            path = shown_path(session.project.build / ref.path)
            makers = [
                name
                for name in action.after
                if ref.path in {output.path for output in session.actions[name].outputs.values()}
            ]
            hint = f"run `buildsys build {makers[0]}` first" if makers else ""
            raise UsageError(f"{action.target} needs {path}, which does not exist", hint)
    states = session.explain(action.after) if action.after else {}
    stale = [name for name in action.after if states[name].state != FRESH]
    if stale:
        sys.stderr.write(f"buildsys: warning: inputs from stale targets: {', '.join(stale)}\n")


def _job(session: Session, action: Action, folder: Path, outputs: Path) -> Job:
    """Return a target's job, with its outputs in a temporary folder."""
    project = session.project
    paths = {role: outputs / ref.path for role, ref in action.outputs.items()}
    for path in paths.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    caches, copied = project.timing_caches(), folder / "timing_caches"
    if action.stage == ENGINE and caches.is_dir():
        shutil.copytree(caches, copied)  # a build adds its timings
    job = stage_job(action, project.root, project.build, paths, timing_caches=copied)
    key = session.executor.examine(action.target).key if action.baseline else None
    return job if key is None else session.executor.here.add_baseline(job, action, key, folder)


def _run(session: Session, action: Action, job: Job, *, debugger: bool) -> JobReply:
    """Run the job under the same locks as a build."""
    locks = Locks(session.project.state / "locks")
    with (
        hold_devices(locks, action, f"debug {action.target}", _report_wait) as held,
        open_pool(session.project.state) as pool,
    ):
        job = replace(job, environment=held.variables, exclusive=held.names)
        started = time.monotonic()
        try:
            return pool.run(job, log=None, debugger=debugger)
        except StageError as error:
            kinds = {CheckFailed: "failed", Unavailable: "unavailable"}
            status, seconds = kinds.get(type(error), "error"), time.monotonic() - started
            return JobReply(status, error.problem, error.hint, {}, seconds)


def _report_wait(holder: LockHolder | None) -> None:
    sys.stderr.write(f"waiting for {holder or 'other targets'}\n")


def _exit_code(action: Action, status: str) -> int:
    if status == "failed":
        return CheckFailed.exit_code
    is_error = status == "error" or (status == "unavailable" and is_required(action))
    return StageError.exit_code if is_error else 0
