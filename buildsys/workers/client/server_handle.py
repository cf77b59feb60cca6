"""The orchestrator's handle of a worker server: run jobs, end it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from buildsys.errors import WorkerDied
from buildsys.system.files import read_end
from buildsys.system.processes import Process, describe_exit, kill_group
from buildsys.workers.job import Job
from buildsys.workers.protocol import (
    JobNotStartedError,
    LineBuffer,
    Message,
    encode,
    error_from_json,
    job_to_json,
)
from buildsys.workers.server_kinds import late_preload

# a server that has not started a job by then never will, e.g. because of a hanging network disk
_START_LIMIT_S = 600.0
_READY_LIMIT_S = 60.0  # the same for a server with all its libraries loaded
_CLOSE_LIMIT_S = 1.0
# The server enforces a job's limit and reports a child's end. After this long it is the server
# that hangs.
_LIMIT_SLACK_S = 20.0
_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL)
_CRASHED_FRAME = re.compile(r'^Current thread .*\n  File "(.+)", line (\d+) in (\S+)', re.MULTILINE)
_LOG_END_BYTES = 64 << 10

OnEvent = Callable[[Message], None]


class JobChannels:
    """The events pipe, status and control socket of one job."""

    def __init__(self, control: socket.socket, request: bytes) -> None:
        """Send a job with the far ends of its channels over ``control``."""
        self.pid: int | None = None  # of the child, once it started
        self._events, remote_events = os.pipe()
        os.set_blocking(self._events, False)
        self._status, remote_status = socket.socketpair()
        # a copy that closing the pool cannot take away; readable means that the server is gone
        self._control = control.dup()
        self._child_ended = False
        with remote_status:
            # listen() notices a server that is gone
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sent = socket.send_fds(control, [request], [remote_events, remote_status.fileno()])
                control.sendall(request[sent:])
            os.close(remote_events)

    def close(self) -> None:
        """Close the channels. The server then kills a running child."""
        os.close(self._events)
        self._status.close()
        self._control.close()

    def listen(
        self, start_limit_s: float, timeout_s: float | None, on_event: OnEvent
    ) -> Message | None:
        """Pass on events; return the result, ``error``, ``refused`` or ``exit`` message.

        None means that the server is gone or hangs.
        """
        event_lines, status_lines = LineBuffer(), LineBuffer()
        deadline: float | None = time.monotonic() + start_limit_s
        with selectors.DefaultSelector() as selector:
            for channel in (self._events, self._status, self._control):
                selector.register(channel, selectors.EVENT_READ)
            while True:
                wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = {key.fileobj for key, _ in selector.select(wait_s)}
                status: list[Message] | None = []
                if self._status in ready:
                    piece = b""
                    with contextlib.suppress(ConnectionResetError):  # it ended before reading all
                        piece = self._status.recv(1 << 16)
                    status = status_lines.feed(piece) if piece else None
                started = self.pid is not None
                answer = self._read_events(event_lines, on_event, selector)
                if answer is not None or status:
                    return answer or next(iter(status or ()), None)
                if not ready or self._control in ready or status is None:
                    return None
                if not started and self.pid is not None:
                    limit_s = None if timeout_s is None else timeout_s + _LIMIT_SLACK_S
                    deadline = None if limit_s is None else time.monotonic() + limit_s
                if self._child_ended:  # the server reports that next
                    soon = time.monotonic() + _LIMIT_SLACK_S
                    deadline = soon if deadline is None else min(deadline, soon)

    def _read_events(
        self, lines: LineBuffer, on_event: OnEvent, selector: selectors.BaseSelector
    ) -> Message | None:
        """Pass on the received events. Return the child's answer if it arrived."""
        while True:
            try:
                piece = os.read(self._events, 1 << 16)
            except BlockingIOError:
                return None
            if not piece:
                with contextlib.suppress(KeyError):
                    selector.unregister(self._events)
                self._child_ended = True
                return None
            for message in lines.feed(piece):
                if message["event"] not in ("started", "progress", "count"):
                    return message
                self.pid = message.get("pid", self.pid)
                on_event(message)


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
        ready: bool = False,
    ) -> None:
        self.log = log
        self.reused = isinstance(server, Process)  # started by an earlier run
        self._control = control
        self._server = server
        self._environment = environment  # variables sent with each job
        self._start_limit_s = _READY_LIMIT_S if ready else _START_LIMIT_S
        self._sending = threading.Lock()
        self._given_up = False  # its process may need a moment to end
        self._jobs: set[JobChannels] = set()

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

    def run(self, job: Job, *, log: Path, timeout_s: float | None, on_event: OnEvent) -> Message:
        """Run ``job`` in a child of the server and return its result.

        Raises: StageError: raised by the stage. WorkerDied: there will be no result.
        """
        request = {
            "job": job_to_json(job),
            "log": str(log),
            "timeout_s": timeout_s,
            "preload": late_preload(job),
            "server_log": job.display_path(self.log),
            "environment": {**self._environment, **job.environment},
        }
        line = encode(request)
        with self._sending:
            if self._control.fileno() < 0:  # another thread has closed this handle
                raise self._server_died(job, log, None)
            channels = JobChannels(self._control, line)
            self._jobs.add(channels)
        try:
            answer = channels.listen(self._start_limit_s, timeout_s, on_event)
        finally:
            self._jobs.discard(channels)
            channels.close()
        if answer is None:
            raise self._server_died(job, log, channels.pid)
        if answer["event"] == "exit":
            place = _crash_place(log) if answer["code"] in _CRASHES else ""
            problem = f"the worker of {job.target} {describe_exit(answer['code'])}{place}"
            if answer["timed_out"]:
                problem = f"{job.target} exceeded its limit of {timeout_s:g} s and was stopped"
            killed = answer["code"] in (-signal.SIGKILL, -signal.SIGTERM)
            hint = f"full log: {job.display_path(log)}"
            raise WorkerDied(problem, hint, killed and not answer["timed_out"])
        if answer["event"] in ("error", "refused"):
            raise error_from_json(answer["error"])
        return answer

    def hang_up(self) -> None:
        """Make the server end this process's jobs, without waiting for it."""
        with contextlib.suppress(OSError):  # it may have ended already
            self._control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End this process's jobs on the server."""
        self.hang_up()
        running = [job.pid for job in list(self._jobs) if job.pid is not None]
        if running:  # the server hangs up after it has killed them
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            if not poll.poll(_CLOSE_LIMIT_S * 1000):
                for pid in running:
                    kill_group(pid)
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # wakes the threads that listen
        with self._sending:
            self._control.close()
        if isinstance(self._server, subprocess.Popen) and self._server.poll() is None:
            self._server.returncode = 0  # Popen would warn about a process that lives on

    def _end_server(self) -> str:
        """Return the exit cause of the server. Kill it if it hangs."""
        ending = ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if isinstance(self._server, subprocess.Popen):
                ending = describe_exit(self._server.wait(_CLOSE_LIMIT_S))
            elif self._server.wait(_CLOSE_LIMIT_S):
                ending = "ended unexpectedly"
        if not ending:
            self._server.send_signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(_CLOSE_LIMIT_S)  # else the next connection would reach it again
        return ending or describe_exit(None)

    def _server_died(self, job: Job, log: Path, pid: int | None) -> WorkerDied:
        self._given_up = True
        if pid is None:
            problem = f"the worker server for {job.target} {self._end_server()}"
            hint = f"full log: {job.display_path(self.log)}"
            return JobNotStartedError(f"{problem} before it started the job", hint)
        kill_group(pid)  # the processes that the child had started
        problem = f"the worker server that ran {job.target} {self._end_server()}"
        return WorkerDied(problem, f"full log: {job.display_path(log)}", was_killed=True)


def _crash_place(log: Path) -> str:
    """Return the Python function that a crashed process was in, from the end of its log."""
    frames = _CRASHED_FRAME.findall(read_end(log, _LOG_END_BYTES))
    if not frames:
        return ""
    file, line, function = frames[-1]
    return f" in {function}() of {'/'.join(Path(file).parts[-2:])}:{line}"
