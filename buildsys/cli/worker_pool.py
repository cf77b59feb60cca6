"""Workers for single jobs of commands, outside of a build."""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.errors import StageError
from buildsys.project.load import Project
from buildsys.store.state_db import ReadOnlyStateDb
from buildsys.workers.job import Job
from buildsys.workers.pool import WorkerPool


def open_pool(state: Path) -> WorkerPool:
    """Open a pool with the servers of builds."""
    return WorkerPool(state, ReadOnlyStateDb(state / "state.db"))


def run_stage(
    project: Project,
    stage: str,
    target: str,
    options: Mapping[str, Any],
    inputs: Mapping[str, Path] | None = None,
    outputs: Mapping[str, Path] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Run a stage for a command, outside the build folder; return its result file.

    ``target`` is COMMAND:MODEL[:VARIANT]; inputs that do not exist are left out.
    Raises: StageError: raised by the stage, or it has not passed.
    """
    command, model, *variant = target.split(":", 2)
    with TemporaryDirectory(prefix=f"buildsys-{command}-") as folder:
        job = Job(
            target=target,
            stage=stage,
            model=model,
            variant="".join(variant),
            options=options,
            inputs={role: path for role, path in (inputs or {}).items() if path.exists()},
            outputs={"result": Path(folder) / "result.json", **(outputs or {})},
            project=project.root,
            code_roots=project.code,
            **more,
        )
        with open_pool(project.state) as pool:
            return run_job(pool, job)


def run_job(pool: WorkerPool, job: Job, *, must_pass: bool = True) -> dict[str, Any]:
    """Run a job of a command, with its progress on a terminal; return its result file.

    Its log stays in the state folder after a failure.
    Raises: StageError: raised by the stage, or it has not passed and must.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{job.target.replace(':', '-')}-{os.getpid()}.log"
    log = pool.state / "logs" / name
    try:
        reply = pool.run(job, log=log, on_event=show_progress)
    finally:
        show_progress({})
    log.unlink(missing_ok=True)
    if must_pass and reply.status != "passed":
        raise StageError(reply.reason, reply.hint, reply.changes)
    result: dict[str, Any] = json.loads(job.outputs["result"].read_bytes())
    return result


def show_progress(event: Mapping[str, Any]) -> None:
    """Show the message of a worker on a terminal; an event without one clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{event.get('message', '')}")
        sys.stderr.flush()
