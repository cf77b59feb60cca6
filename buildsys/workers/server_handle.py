"""The orchestrator's handle of a worker server: run jobs, end it."""

from __future__ import annotations

import contextlib
import math
import os
import re
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType

from buildsys.errors import WorkerDied
from buildsys.system.files import read_end
from buildsys.system.processes import Process, describe_exit, kill_group
from buildsys.workers.job import (
    INTERRUPTED,
    JOB,
    TERMINAL,
    Job,
    JobNotStartedError,
    LineBuffer,
    Message,
    decode,
    encode,
    error_from_json,
    job_to_json,
    late_preload,
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


class JobChannel:
    """The channel of one job."""

    def __init__(self, control: socket.socket) -> None:
        """Send the far end of a new channel over ``control``."""
        self.pid: int | None = None  # None until the child has started
        self._channel, remote = socket.socketpair()
        # a copy that closing the pool cannot take away; readable means that the server is gone
        self._control = control.dup()
        # listen() notices a server that is gone
        with remote, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(control, [JOB], [remote.fileno()])

    def hang_up(self) -> None:
        """Let the server end the job; its last message still arrives."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the channel. The server then kills a running child."""
        self._channel.close()
        self._control.close()

    def run(
        self, request: bytes, timeout_s: float | None, on_event: OnEvent, *, foreground: bool
    ) -> Message | None:
        """Pass on events; return the ``result``, ``error``, ``refused`` or ``exit`` message.

        None means that the server is gone or hangs.
        """
        deadline = time.monotonic() + _START_LIMIT_S
        self._channel.settimeout(_START_LIMIT_S)
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(self._control, selectors.EVENT_READ)
            lines = LineBuffer()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
                if foreground:
                    request = request[socket.send_fds(self._channel, [request], TERMINAL) :]
                self._channel.sendall(request)
            while True:
                wait_s = None if math.isinf(deadline) else max(0, deadline - time.monotonic())
                ready = {key.fileobj for key, _ in selector.select(wait_s)}
                piece = b""
                if self._channel in ready:
                    with contextlib.suppress(ConnectionResetError):
                        piece = self._channel.recv(1 << 16)
                if not piece:  # end of file, no answer in time, or the server is gone
                    return None
                for message in decode(lines.feed(piece)):
                    if message["event"] not in ("started", "progress", "count"):
                        return message
                    if message["event"] == "started":
                        self.pid = message["pid"]
                        limit_s = math.inf if timeout_s is None else timeout_s + _LIMIT_SLACK_S
                        deadline = time.monotonic() + limit_s
                    on_event(message)

    @contextlib.contextmanager
    def passing_on_interrupts(self) -> Iterator[None]:
        """Send Ctrl-C to the running job, which has no terminal to get it from."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            if self.pid is None:
                signal.default_int_handler(number, frame)
            else:
                with contextlib.suppress(ProcessLookupError):  # just ended
                    os.kill(self.pid, signal.SIGINT)

        previous = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)


class ServerHandle:
    """A thread-safe connection to a running server, which may serve further processes.

    Each job has its own channels.
    """

    def __init__(
        self,
        control: socket.socket,
        server: subprocess.Popen[bytes] | Process,
        *,
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.log = log
        self.reused = isinstance(server, Process)  # started by an earlier run
        self._control = control
        self.server = server
        self._environment = environment  # variables sent with each job
        self._sending = threading.Lock()
        self._given_up = False  # its process may need a moment to end
        self._jobs: set[JobChannel] = set()

    @property
    def is_alive(self) -> bool:
        """Return True if the server can take another job."""
        if self._given_up:
            return False
        try:
            return self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:  # open; servers never send anything here
            return True
        except OSError:
            return False

    def run(
        self,
        job: Job,
        *,
        log: Path | None,
        timeout_s: float | None,
        on_event: OnEvent,
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
            "server_log": job.display_path(self.log),
            "environment": {**self._environment, **job.environment},
        }
        with self._sending:
            if self._control.fileno() < 0:  # another thread has closed this handle
                raise self._server_died(job, log, None)
            channel = JobChannel(self._control)
            self._jobs.add(channel)
        try:
            with contextlib.nullcontext() if log else channel.passing_on_interrupts():
                answer = channel.run(encode(request), timeout_s, on_event, foreground=log is None)
        finally:
            self._jobs.discard(channel)
            channel.close()
        if answer is None:
            raise self._server_died(job, log, channel.pid)
        if answer["event"] == "exit":
            if log is None and answer["code"] == INTERRUPTED:
                raise KeyboardInterrupt
            place = _crash_place(log) if answer["code"] in _CRASHES else ""
            problem = f"the worker of {job.target} {describe_exit(answer['code'])}{place}"
            if answer["timed_out"]:
                problem = f"{job.target} exceeded its limit of {timeout_s:g} s and was stopped"
            raise WorkerDied(problem, _where_output_is(job, log))
        if answer["event"] in ("error", "refused"):
            raise error_from_json(answer["error"])
        return answer

    def hang_up(self) -> None:
        """Make the server end this process's jobs, without waiting for it."""
        for job in list(self._jobs):
            job.hang_up()

    def close(self) -> None:
        """End this process's jobs on the server, and the connection to it."""
        self.hang_up()
        deadline = time.monotonic() + _CLOSE_LIMIT_S
        while any(job.pid for job in list(self._jobs)) and time.monotonic() < deadline:
            time.sleep(0.002)
        for job in list(self._jobs):  # the server hangs
            if job.pid is not None:
                kill_group(job.pid)
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # wakes the threads that listen
        with self._sending:
            self._control.close()
        if isinstance(self.server, subprocess.Popen) and self.server.poll() is None:
            self.server.returncode = 0  # Popen would warn about a process that lives on

    def _end_server(self) -> str:
        """Find the exit cause of the server. Kill it if it hangs."""
        ending = ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if isinstance(self.server, subprocess.Popen):
                ending = describe_exit(self.server.wait(_CLOSE_LIMIT_S))
            elif self.server.wait(_CLOSE_LIMIT_S):
                ending = "ended unexpectedly"
        if not ending:
            self.server.send_signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(_CLOSE_LIMIT_S)  # else the next connection would reach it again
        return ending or describe_exit(None)

    def _server_died(self, job: Job, log: Path | None, pid: int | None) -> WorkerDied:
        self._given_up = True
        if pid is None:
            problem = f"the worker server for {job.target} {self._end_server()}"
            hint = f"full log: {job.display_path(self.log)}"
            return JobNotStartedError(f"{problem} before it started the job", hint)
        kill_group(pid)  # the processes that the child had started
        problem = f"the worker server that ran {job.target} {self._end_server()}"
        return WorkerDied(problem, _where_output_is(job, log))


def _where_output_is(job: Job, log: Path | None) -> str:
    return f"full log: {job.display_path(log)}" if log else "the output above has its last words"


def _crash_place(log: Path | None) -> str:
    """Find the Python function that a crashed process was in at the end of its log."""
    frames = _CRASHED_FRAME.findall(read_end(log, _LOG_END_BYTES)) if log else ()
    if not frames:
        return ""
    file, line, function = frames[-1]
    return f" in {function}() of {'/'.join(Path(file).parts[-2:])}:{line}"
