"""Workers for single jobs of commands, outside of a build."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildsys.errors import StageError
from buildsys.store.state_db import ReadOnlyStateDb
from buildsys.workers.client.pool import WorkerPool
from buildsys.workers.job import Job


def open_pool(state: Path) -> WorkerPool:
    """Return a pool with the servers of builds."""
    return WorkerPool(state, ReadOnlyStateDb(state / "state.db"))


def run_job(pool: WorkerPool, job: Job) -> dict[str, Any]:
    """Run a job of a command, with its progress on a terminal; return its result file.

    Its log is next to the result file.
    Raises: StageError: raised by the stage, or it has not passed.
    """
    result = job.outputs["result"]
    try:
        reply = pool.run(job, log=result.with_suffix(".log"), on_event=_show_progress)
    finally:
        _show_progress({})
    if reply.status != "passed":
        raise StageError(reply.reason, reply.hint)
    found: dict[str, Any] = json.loads(result.read_bytes())  # replies are without long lists
    return found


def _show_progress(event: Mapping[str, Any]) -> None:
    """Show the message of a worker on a terminal; an event without one clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{event.get('message', '')}")
        sys.stderr.flush()
