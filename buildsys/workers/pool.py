"""The worker servers of one run, started on first use, and the jobs that run on them.

Nothing here imports a heavy library.
"""

import contextlib
import json
import math
import os
import re
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from buildsys.errors import StageError, WorkerDied
from buildsys.system.files import TextCache, read_end
from buildsys.system.processes import describe_exit, kill_group
from buildsys.system.toolchains import Toolchain, require_interpreter
from buildsys.workers import registry
from buildsys.workers.job import (
    INTERRUPTED,
    LIGHT,
    TERMINAL,
    TORCH,
    Job,
    JobNotStartedError,
    Message,
    ServerKind,
    encode,
    error_from_json,
    job_to_json,
    late_preload,
    server_kind_of,
)

# a server that has not started a job by then never will, e.g. because of a hanging network disk
_START_LIMIT_S = 300.0
_CLOSE_LIMIT_S = 1.0
# The server enforces a job's limit. After this long it is the server that hangs.
_LIMIT_SLACK_S = 20.0
_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL)
_CRASHED_FRAME = re.compile(r'^Current thread .*\n  File "(.+)", line (\d+) in (\S+)', re.MULTILINE)
_LOG_END_BYTES = 64 << 10

OnEvent = Callable[[Message], None]


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
    changes: Sequence[str] = ()  # of the manifest that may help


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
        on_event: OnEvent = lambda _: None,
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
        Unavailable: also if there is no result, as its toolchain cannot be used.
        KeyboardInterrupt: Ctrl-C ended a job in the foreground.
        """
        if job.toolchain is not None:  # even if the stage uses it through another process
            require_interpreter(job.toolchain)
        kind, toolchain = server_kind_of(job), job.runs_in

        def forward(event: Message) -> None:
            if kind is TORCH and event["event"] == "started" and log is not None:
                self._server(LIGHT, None)  # simplify follows export: load its libraries meanwhile
            on_event(event)

        def run_on(server: ServerHandle) -> Message:
            return server.run(job, log, timeout_s, forward, debugger=debugger)

        try:
            server = self._server(kind, toolchain)
            try:
                answer = run_on(server)
            except JobNotStartedError:
                if self._closed or server.connection.popen is not None:
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

    def _server(self, kind: ServerKind, toolchain: Toolchain | None) -> "ServerHandle":
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
            from buildsys.workers.launch import connect_server

            try:
                connection = connect_server(kind, toolchain, self.state / "workers", self.texts)
            except OSError as error:
                file = f": {error.filename}" if error.filename else ""
                raise StageError(
                    f"cannot start a worker server: {error.strerror}{file}",
                    "check that it can be executed, and the free memory and disk",
                ) from None
            self._servers[key] = server = ServerHandle(connection)
            return server


@dataclass(eq=False)
class _RunningJob:
    channel: socket.socket
    # a copy that closing the pool cannot take away; readable means that the server is gone
    control: socket.socket
    pid: int | None = None  # None until the child has started


@dataclass(eq=False)
class ServerHandle:
    """Connections of one run to a server, which may serve further runs. Thread-safe."""

    connection: registry.ServerConnection
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False  # or given up: its process may need a moment to end
    _jobs: set[_RunningJob] = field(default_factory=set)

    @property
    def is_alive(self) -> bool:
        """Return True if the server can take another job."""
        if self._closed:
            return False
        try:
            return self.connection.control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:  # open; servers never send anything here
            return True
        except OSError:
            return False

    def run(
        self,
        job: Job,
        log: Path | None,
        timeout_s: float | None,
        on_event: OnEvent,
        *,
        debugger: bool,
    ) -> Message:
        """Run ``job`` in a child of the server and return its result.

        Raises: StageError: raised by the stage. WorkerDied: there will be no result.
        KeyboardInterrupt: Ctrl-C ended a job in the foreground.
        """
        request = {
            "job": job_to_json(job),
            "log": log and str(log),
            "debugger": debugger,
            "timeout_s": timeout_s,
            "preload": late_preload(job),
            "environment": {**self.connection.environment, **job.environment},
            "idle_s": self.connection.idle_s,
        }
        with self._lock:
            if self._closed:  # by another thread
                problem = f"the worker server for {job.target} has ended"
                raise JobNotStartedError(problem, self._where_log_is(job))
            channel = registry.connect(self.connection.address)
            if channel is None:
                raise self._server_died(job, log, None)
            running = _RunningJob(channel, self.connection.control.dup())
            self._jobs.add(running)
        try:
            with contextlib.nullcontext() if log else _passing_on_interrupts(running):
                answer = self._converse(running, request, on_event)
        finally:
            self._jobs.discard(running)
            running.channel.close()  # the server then kills a running child
            running.control.close()
        if answer is None:
            raise self._server_died(job, log, running.pid)
        if answer["event"] == "exit":
            if log is None and answer["code"] == INTERRUPTED:
                raise KeyboardInterrupt
            place = _crash_place(log) if answer["code"] in _CRASHES else ""
            problem = f"the worker of {job.target} {describe_exit(answer['code'])}{place}"
            if answer["timed_out"]:
                problem = f"{job.target} exceeded its limit of {timeout_s:g} s and was stopped"
            raise WorkerDied(problem, _where_output_is(job, log))
        if answer["event"] == "error":
            raise error_from_json(answer["error"])
        return answer

    def _converse(
        self, running: _RunningJob, request: Mapping[str, Any], on_event: OnEvent
    ) -> Message | None:
        """Send a request; pass on events until the last message.

        None means that the server is gone or hangs.
        """
        channel, timeout_s = running.channel, request["timeout_s"]
        deadline = time.monotonic() + _START_LIMIT_S
        channel.settimeout(_START_LIMIT_S)
        with selectors.DefaultSelector() as selector:
            selector.register(channel, selectors.EVENT_READ)
            selector.register(running.control, selectors.EVENT_READ)
            message = encode(request)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
                if request["log"] is None:
                    message = message[socket.send_fds(channel, [message], TERMINAL) :]
                channel.sendall(message)
            pending = b""
            while True:
                wait_s = None if math.isinf(deadline) else max(0, deadline - time.monotonic())
                ready = {key.fileobj for key, _ in selector.select(wait_s)}
                piece = b""
                if channel in ready:
                    with contextlib.suppress(ConnectionResetError):
                        piece = channel.recv(1 << 16)
                if not piece:  # end of file, no answer in time, or the server is gone
                    return None
                *lines, pending = (pending + piece).split(b"\n")
                for line in lines:
                    try:
                        event = json.loads(line)
                    except ValueError:  # left incomplete by a killed child
                        continue
                    if event["event"] not in ("started", "progress", "count"):
                        return event  # type: ignore[no-any-return]
                    if event["event"] == "started":
                        running.pid = event["pid"]
                        limit_s = math.inf if timeout_s is None else timeout_s + _LIMIT_SLACK_S
                        deadline = time.monotonic() + limit_s
                    on_event(event)

    def hang_up(self) -> None:
        """Make the server end this run's jobs; their last messages still arrive."""
        for job in list(self._jobs):
            with contextlib.suppress(OSError):
                job.channel.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End this run's jobs on the server, and the connection to it."""
        self.hang_up()
        deadline = time.monotonic() + _CLOSE_LIMIT_S
        while any(job.pid for job in list(self._jobs)) and time.monotonic() < deadline:
            time.sleep(0.002)
        for job in list(self._jobs):  # the server hangs
            if job.pid is not None:
                kill_group(job.pid)
        with self._lock:
            self._closed = True
            with contextlib.suppress(OSError):
                self.connection.control.shutdown(socket.SHUT_RDWR)  # wakes waiting threads
            self.connection.control.close()
            popen = self.connection.popen
            if popen is not None and popen.poll() is None:
                popen.returncode = 0  # Popen would warn about a process that lives on

    def _where_log_is(self, job: Job) -> str:
        return f"full log: {job.display_path(self.connection.log)}"

    def _server_died(self, job: Job, log: Path | None, pid: int | None) -> WorkerDied:
        self._closed = True
        process, popen = self.connection.process, self.connection.popen
        if process.wait(_CLOSE_LIMIT_S):
            code = popen.poll() if popen else None
            ending = "ended unexpectedly" if code is None else describe_exit(code)
        else:  # it hangs
            ending = describe_exit(None)
            process.send_signal(signal.SIGKILL)
            process.wait(_CLOSE_LIMIT_S)  # else the next connection would reach it again
        if pid is None:
            problem = f"the worker server for {job.target} {ending} before it started the job"
            return JobNotStartedError(problem, self._where_log_is(job))
        kill_group(pid)  # the processes that the child had started
        problem = f"the worker server that ran {job.target} {ending}"
        return WorkerDied(problem, _where_output_is(job, log))


@contextlib.contextmanager
def _passing_on_interrupts(job: _RunningJob) -> Iterator[None]:
    """Send Ctrl-C to the running job, which has no terminal to get it from."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if job.pid is None:
            signal.default_int_handler(number, frame)
        else:
            with contextlib.suppress(ProcessLookupError):  # just ended
                os.kill(job.pid, signal.SIGINT)

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _where_output_is(job: Job, log: Path | None) -> str:
    return f"full log: {job.display_path(log)}" if log else "the output above has its last words"


def _crash_place(log: Path | None) -> str:
    """Find the Python function that a crashed process was in at the end of its log."""
    frames = _CRASHED_FRAME.findall(read_end(log, _LOG_END_BYTES)) if log else ()
    if not frames:
        return ""
    file, line, function = frames[-1]
    return f" in {function}() of {'/'.join(Path(file).parts[-2:])}:{line}"
