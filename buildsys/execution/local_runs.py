"""Stages on this machine: its devices, its timing caches, its worker processes."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from buildsys.errors import BuildsysError, CheckFailed, Unavailable
from buildsys.execution.action_key import ActionKey
from buildsys.execution.baselines import Baselines
from buildsys.plan.action import RESULT, Action
from buildsys.store.ledger import FAILED, UNAVAILABLE, Ledger
from buildsys.store.locks import Locks, OnWait
from buildsys.store.object_store import Store
from buildsys.store.publish import make_folders

if TYPE_CHECKING:
    from buildsys.workers.job import Job
    from buildsys.workers.pool import JobReply, WorkerPool

Event = dict[str, Any]


class Folders(NamedTuple):
    """The folders of a project."""

    project: Path
    build: Path
    state: Path
    timing_caches: Path | None = None


@dataclass(frozen=True)
class LocalRuns:
    """Runs stages on this machine."""

    folders: Folders
    pool: WorkerPool
    store: Store
    locks: Locks
    ledger: Ledger
    baselines: Baselines
    threads: int  # of the processor per worker; 0: no limit
    # stages at a time; those that wait for a GPU or for the machine do not count
    slots: threading.Semaphore | nullcontext[None]

    def run(
        self,
        action: Action,
        key: ActionKey,
        tree: Path,
        log: Path,
        *,
        on_wait: OnWait,
        on_event: Callable[[Event], None],
        refits: bool,
    ) -> JobReply:
        """Run the stage of an action with outputs in ``tree``.

        ``refits``: earlier builds may be its start.
        Raises: StageError: with the seconds of the stage itself.
        """
        # not needed with nothing to do
        from buildsys.execution.availability import needs_no_device
        from buildsys.execution.stage_job import earlier_builds, hold_devices, stage_job

        outputs = {role: tree / ref.path for role, ref in action.outputs.items()}
        make_folders(path.parent for path in (log, *outputs.values()))
        devices = not needs_no_device(action, key, self.folders.project)
        holding = hold_devices(self.locks, action, action.target, on_wait, needed=devices)
        with holding as held, self.slots, ExitStack() as stack:
            known = self.ledger.records(action.target) if refits else ()
            job = stage_job(
                action,
                self.folders.project,
                self.folders.build,
                outputs,
                threads=self.threads,
                timing_caches=self.folders.timing_caches,
                held=held,
                earlier=earlier_builds(action, key.parts, known, self.store),
            )
            if action.baseline is not None:
                folder = Path(
                    stack.enter_context(tempfile.TemporaryDirectory(dir=self.folders.state))
                )
                job = self.add_baseline(job, action, key, folder)
            begun = time.perf_counter()
            run = partial(self.pool.run, log=log, timeout_s=action.timeout_s, on_event=on_event)
            try:
                return run(job)
            except (CheckFailed, Unavailable) as error:
                error.seconds = time.perf_counter() - begun
                if not outputs[RESULT].exists():
                    raise
                from buildsys.workers.pool import JobReply

                status = FAILED if isinstance(error, CheckFailed) else UNAVAILABLE
                return JobReply(status, error.problem, error.hint, {}, error.seconds)
            except BuildsysError as error:
                error.seconds = time.perf_counter() - begun
                raise

    def add_baseline(self, job: Job, action: Action, key: ActionKey, folder: Path) -> Job:
        """Return a gate's job with its baseline, copied into ``folder``."""
        baseline, files = self.baselines.fetch(action, key.parts, self.store, folder)
        earlier = {f"baseline.{role}": path for role, path in files.items()}
        return replace(job, baseline=baseline, inputs={**job.inputs, **earlier})
