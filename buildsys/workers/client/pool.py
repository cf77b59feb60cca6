"""The worker servers of one run, started or found when first needed. Nothing here imports a heavy library."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildsys.errors import StageError, WorkerDied
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.workers.job import Job
from buildsys.workers.server_kinds import LIGHT, TORCH, Profile, profile_of, toolchain_of

if TYPE_CHECKING:
    from buildsys.workers.client.server_handle import ServerHandle


@dataclass(frozen=True)
class JobReply:
    """What a stage found; ``figures`` are in the result file too. The peak counts pages shared with the server."""

    status: str  # passed | failed | unavailable
    reason: str
    hint: str
    figures: dict[str, Any]
    seconds: float
    log: Path
    peak_rss_mib: float = 0.0


def _ignore(event: dict[str, Any]) -> None:
    """Drop an event."""


class WorkerPool:
    """Runs jobs in worker processes; threads may share it.

    What runs dies with this process, however that ends, and ``close`` ends it at once. A server may outlive it
    for a while, so that the next run need not load everything again (``BUILDSYS_WORKER_IDLE``).
    """

    def __init__(self, state: Path, *, python: str = sys.executable) -> None:
        self._folder = state / "workers"
        self._python = python
        self._servers: dict[tuple[object, ...], ServerHandle] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def run(
        self,
        job: Job,
        *,
        log: Path,
        timeout_s: float | None = None,
        on_event: Callable[[dict[str, Any]], None] = _ignore,
    ) -> JobReply:
        """Run ``job`` in a process of its own, all that it prints going to ``log``.

        Events: ``started`` (pid), any number of ``progress`` (message), ``finished`` (status, seconds, peak_rss_mib).
        They come in the calling thread; an exception there stops the job.
        Raises: StageError: what the stage raised, with its class. WorkerDied: the process ended without an answer.
        """
        if job.toolchain is not None:
            from buildsys.workers.client.toolchain_check import (
                refusal,
            )  # a run without toolchains need not wait for it

            refused = refusal(job, job.toolchain, log)
            if refused is not None:
                return JobReply("unavailable", refused.problem, refused.hint, {}, 0.0, log)
        profile = profile_of(job)

        def heard(event: dict[str, Any]) -> None:
            if profile is TORCH and event["event"] == "started":
                self._server(
                    LIGHT, None
                )  # what is exported is simplified next: those libraries load meanwhile
            on_event(event)

        try:
            answer = self._answer(profile, job, log=log, timeout_s=timeout_s, on_event=heard)
        except WorkerDied as error:
            if self._closed:
                error = WorkerDied(
                    f"{job.target} was stopped because the run was ended", error.hint
                )
            _append(log, error)
            raise error from None
        on_event(
            {
                "event": "finished",
                **{field: answer[field] for field in ("status", "seconds", "peak_rss_mib")},
            }
        )
        return JobReply(
            log=log, **{field: value for field, value in answer.items() if field != "event"}
        )

    def close(self) -> None:
        """End all servers; a job that still runs in another thread fails at once."""
        with self._lock:
            self._closed = True
            for server in self._servers.values():
                server.hang_up()
            for server in self._servers.values():
                server.close()
            self._servers.clear()

    def _answer(self, profile: Profile, job: Job, **how: Any) -> dict[str, Any]:
        toolchain = toolchain_of(job)
        server = self._server(profile, toolchain)
        try:
            return server.run(job, **how)
        except WorkerDied as error:
            from buildsys.workers.client.server_handle import NotTakenError

            if self._closed or not server.reused or not isinstance(error, NotTakenError):
                raise
        return self._server(profile, toolchain).run(
            job, **how
        )  # an earlier run's server was about to end, or hung

    def _server(self, profile: Profile, toolchain: Toolchain | None) -> ServerHandle:
        with self._lock:
            if self._closed:
                raise WorkerDied("no worker can start any more: the run was ended")
            kind = profile.name, toolchain and (toolchain.python, *toolchain.env.items())
            server = self._servers.get(kind)
            if server is None or not server.alive:
                server = self._servers[kind] = self._start(profile, toolchain, dead=server)
            return server

    def _start(
        self, profile: Profile, toolchain: Toolchain | None, dead: ServerHandle | None
    ) -> ServerHandle:
        # a run with nothing to do never gets here, and need not wait for these
        from buildsys.workers.client.launch import Elsewhere, start_server

        if dead is not None:
            dead.close()
        elsewhere = None
        if toolchain is not None:
            from buildsys.system.interpreters.interpreter import check_interpreter

            elsewhere = Elsewhere(toolchain, check_interpreter(toolchain).require())
        try:
            return start_server(
                profile, python=self._python, folder=self._folder, elsewhere=elsewhere
            )
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            python = self._python if toolchain is None else toolchain.python
            raise StageError(
                f"cannot start a worker server with {python}: {error.strerror}{where}"
            ) from None


def _append(log: Path, error: WorkerDied) -> None:
    """End a log whose writer can no longer do it."""
    with (
        contextlib.suppress(OSError),
        log.open("a", encoding="utf-8") as stream,
    ):  # the error itself says it all
        stream.write(f"# {error.problem}\n")
