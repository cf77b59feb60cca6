"""Accepted builds of gates in a history: the baselines of a clean checkout."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from buildsys.history.builds import RAN
from buildsys.history.database import History, history_file
from buildsys.history.recorder import machine_id
from buildsys.store.ledger import AcceptedBuild
from buildsys.store.state_db import warn_on_stderr

_ACCEPTED = ("passed", "unavailable")  # without a baseline, a build is one for the next
_MOST_RUNS = 500


class PastBuilds:
    """A reader of the history at each call, as a run adds to it; it warns once."""

    def __init__(self, state: Path) -> None:
        self._file = history_file(state)
        self._warn = cache(warn_on_stderr)

    def of_gate(self, gate: str, engine_target: str, engine: str) -> Iterator[AcceptedBuild]:
        """Yield the accepted builds of a gate on this machine, newest first.

        ``engine`` is the digest of the present one, which identifies the project.
        """
        history, here = History.read_only(self._file, self._warn), machine_id()
        engines = {
            build.outputs["engine"]: build
            for build in history.builds(target=engine_target)
            if "engine" in build.outputs
        }
        if engine not in engines:
            return
        project = engines[engine].project
        runs = history.builds(target=gate, machine_id=here, project=project, limit=_MOST_RUNS)
        for run in runs:
            digest = run.figures.get("engine")
            if run.how == RAN and run.status in _ACCEPTED and digest in engines:
                data = engines[digest].outputs.get("engine.data", "absent")
                figures = {k: v for k, v in run.figures.items() if isinstance(v, float)}
                options, then = run.figures.get("engine_options"), history.environment(run)
                yield AcceptedBuild(digest, data, run.started, then, options, figures)
