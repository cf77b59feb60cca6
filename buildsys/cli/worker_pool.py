"""Workers for single jobs of commands, outside of a build."""

from __future__ import annotations

from pathlib import Path

from buildsys.store.state_db import ReadOnlyStateDb
from buildsys.workers.client.pool import WorkerPool


def open_pool(state: Path) -> WorkerPool:
    """Return a pool with the servers of builds."""
    return WorkerPool(state, ReadOnlyStateDb(state / "state.db"))
