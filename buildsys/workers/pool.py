"""The worker servers of one run, started on first use. Nothing here imports a heavy library."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildsys.errors import StageError, WorkerDied

if TYPE_CHECKING:
    from buildsys.system.files import TextCache
    from buildsys.system.toolchains import Toolchain
    from buildsys.workers.job import Job, ServerKind
    from buildsys.workers.server_handle import ServerHandle


@dataclass(frozen=True)
class JobReply:
    """The reply to a job. ``figures`` are without the long lists of the result file."""

    status: str  # passed | failed | unavailable | noisy
    reason: str
    hint: str
    figures: dict[str, Any]
    seconds: float
    peak_rss_mib: float = 0.0  # includes pages shared with the server
    reads: list[list[Any]] = field(default_factory=list)  # as the recorder has them


class WorkerPool(contextlib.AbstractContextManager["WorkerPool"]):
    """A thread-safe pool of worker processes.

    A job's process ends with this one, however that ends; ``close`` ends it at once. A server may
    stay for a while, so that the next run finds its libraries loaded (``BUILDSYS_WORKER_IDLE``).
    ``texts`` caches facts about libraries; a pool with it uses no server of one without.
    """

    def __init__(self, state: Path, texts: TextCache | None = None) -> None:
        self.texts = texts
        self.state = state
        self._servers: dict[tuple[object, ...], ServerHandle] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def run(
        self,
        job: Job,
        *,
        log: Path | None,
        timeout_s: float | None = None,
        on_event: Callable[[dict[str, Any]], None] = lambda _: None,
        debugger: bool = False,
    ) -> JobReply:
        """Run ``job`` in a separate process, with all output in ``log``.

        Without a log, it runs in the foreground: on this process's terminal, with Ctrl-C for the
        stage, and its reads are not recorded. There ``debugger`` opens pdb where an exception was
        raised.
        Events: ``started`` (pid), any number of ``progress`` (message) and ``count`` (done, total,
        unit), ``finished`` (status, seconds, peak_rss_mib). They arrive in the calling thread; an
        exception there stops the job.
        Raises: StageError: raised by the stage. WorkerDied: the process ended without a result.
        KeyboardInterrupt: Ctrl-C ended a job in the foreground.
        """
        from buildsys.workers.job import (
            LIGHT,
            TORCH,
            JobNotStartedError,  # not needed with nothing to do
            server_kind_of,
        )

        if job.toolchain is not None:
            from buildsys.workers.launch import check_toolchain

            problem = check_toolchain(job, job.toolchain, log)
            if problem is not None:
                return JobReply("unavailable", problem.problem, problem.hint, {}, 0.0)
        kind, toolchain = server_kind_of(job), job.runs_in

        def forward(event: dict[str, Any]) -> None:
            if kind is TORCH and event["event"] == "started" and log is not None:
                self._server(LIGHT, None)  # simplify follows export: load its libraries meanwhile
            on_event(event)

        def run_on(server: ServerHandle) -> dict[str, Any]:
            return server.run(
                job, log=log, timeout_s=timeout_s, on_event=forward, debugger=debugger
            )

        try:
            server = self._server(kind, toolchain)
            try:
                answer = run_on(server)
            except JobNotStartedError:
                if self._closed or not server.reused:
                    raise
                # a server of an earlier run that was about to end, or hung
                answer = run_on(self._server(kind, toolchain))
        except WorkerDied as error:
            if self._closed:
                problem_text = f"{job.target} was stopped because the run was ended"
                error = WorkerDied(problem_text, error.hint)
            if log is not None:
                # the log's writer is gone; if this fails too, the error itself says everything
                with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as stream:
                    stream.write(f"# {error.problem}\n")
            raise error from None
        finished = {name: answer[name] for name in ("status", "seconds", "peak_rss_mib")}
        on_event({"event": "finished", **finished})
        return JobReply(**{name: value for name, value in answer.items() if name != "event"})

    def close(self) -> None:
        """End all servers. Jobs in other threads fail at once."""
        with self._lock:
            self._closed = True
            for server in self._servers.values():
                server.hang_up()
            for server in self._servers.values():
                server.close()
            self._servers.clear()

    def _server(self, kind: ServerKind, toolchain: Toolchain | None) -> ServerHandle:
        """Find the running server of a kind, or start one."""
        with self._lock:
            if self._closed:
                raise WorkerDied("no worker can be started: the run was ended")
            key = kind.name, toolchain and (toolchain.python, *toolchain.env.items())
            server = self._servers.get(key)
            if server is not None and server.is_alive:
                return server
            if server is not None:
                server.close()
            # slow to import; a run with nothing to do never gets here
            from buildsys.workers.launch import start_server

            try:
                server = start_server(kind, toolchain, self.state / "workers", self.texts)
            except OSError as error:
                file = f": {error.filename}" if error.filename else ""
                raise StageError(
                    f"cannot start a worker server: {error.strerror}{file}",
                    "check that it can be executed, and the free memory and disk",
                ) from None
            self._servers[key] = server
            return server
