"""The program of worker processes: ``python -m buildsys.workers.server JSON``.

A server imports libraries once, then forks a child for each job. Single-threaded on purpose: a fork
copies one thread only. Standard library only, apart from those libraries.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from buildsys.errors import StageError
from buildsys.system.files import stamp
from buildsys.workers.child import flush, fork_child, limit_log, log, run_child, signal_group
from buildsys.workers.job import (
    RETIRE,
    TERMINAL,
    LineBuffer,
    Message,
    encode,
    error_to_json,
    job_from_json,
)
from buildsys.workers.registry import idle_limit_s, remove

_KILL_GRACE_S = 2.0  # between SIGTERM and SIGKILL
_LOG_CHECK_S = 1.0  # between two looks at the sizes of logs


@dataclass(eq=False)
class _RunningJob:
    """A job with its channel, and its child as soon as that runs; times are monotonic."""

    channel: socket.socket
    request: LineBuffer = field(default_factory=LineBuffer)
    terminal: list[int] = field(default_factory=list)  # descriptors, in the foreground
    pid: int = 0
    log: Path | None = None
    stop_at: float | None = None  # then SIGTERM
    kill_at: float | None = None  # then SIGKILL
    timed_out: bool = False


class Server:
    """A server with one forked child per job.

    It serves all that connect to ``start["listener"]``, and ends ``idle_s`` after the last one
    disconnected.
    """

    def __init__(self, start: Message) -> None:
        self._idle_s: float = start["idle_s"]
        self._end_at = 0.0  # unless there is a connection
        self._retiring = False  # accepts no new connections and ends after the last one
        self._problem = ""
        self._loaded_late: set[str] = set()  # or tried to
        self._controls: set[socket.socket] = set()
        self._jobs: set[_RunningJob] = set()
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._wake_up)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the orchestrator handles Ctrl-C
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wakeup socket ends the wait
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        signal.signal(signal.SIGHUP, lambda *_: self._stop())
        listener = socket.socket(fileno=start["listener"])
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._listener: socket.socket | None = listener  # None: it accepts no more connections
        self._address = Path(start["path"])
        self._address_stamp = stamp(self._address)

    def serve(self, problem: str) -> NoReturn:
        """Run jobs until nobody can send one. A ``problem`` refuses every job."""
        self._problem = problem
        self._retiring = bool(problem)
        while True:
            for key, _ in self._selector.select(self._enforce_limits()):
                key.data(key.fileobj)
            self._reap_children()
            self._end_if_idle()

    def _wake_up(self, wakeup: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            wakeup.recv(4096)

    def _accept(self, listener: socket.socket) -> None:
        """Add new connections."""
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            while True:
                channel, _ = listener.accept()
                channel.setblocking(True)
                self._add_control(channel)

    def _add_control(self, control: socket.socket) -> None:
        self._controls.add(control)
        self._selector.register(control, selectors.EVENT_READ, self._receive_jobs)

    def _receive_jobs(self, control: socket.socket) -> None:
        """Take the channels of new jobs."""
        piece, descriptors = b"", list[int]()
        with contextlib.suppress(ConnectionResetError):
            piece, descriptors, _, _ = socket.recv_fds(control, 1 << 10, 64)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            job = _RunningJob(socket.socket(fileno=descriptor))
            self._jobs.add(job)
            self._selector.register(job.channel, selectors.EVENT_READ, partial(self._receive, job))
        if RETIRE in piece:
            self._retiring = True
        if not piece:  # the orchestrator is gone, and so are its ends of the jobs' channels
            self._controls.discard(control)
            self._selector.unregister(control)
            control.close()
            self._end_at = time.monotonic() + self._idle_s

    def _receive(self, job: _RunningJob, channel: socket.socket) -> None:
        """Receive the request of a job, or the end of its channel: nobody wants its result."""
        piece, descriptors = b"", list[int]()
        with contextlib.suppress(ConnectionResetError):
            piece, descriptors, _, _ = socket.recv_fds(channel, 1 << 16, len(TERMINAL))
        job.terminal += descriptors
        if piece and not job.pid:
            try:
                for line in job.request.feed(piece):
                    self._start_job(job, json.loads(line))
            except Exception:  # not sent by a client of this version
                traceback.print_exc()
            else:
                return
        if job.pid:
            self._selector.unregister(job.channel)
            signal_group(job.pid, signal.SIGKILL)
        else:
            self._close(job)

    def _start_job(self, job: _RunningJob, message: Message) -> None:
        timeout_s = None if message["timeout_s"] is None else float(message["timeout_s"])
        target, job.log = message["job"]["target"], message["log"] and Path(message["log"])
        if self._idle_s > 0:  # else it serves one run
            self._idle_s = idle_limit_s(message["environment"])  # the limit of the latest run
        problem = self._problem
        if not problem:
            for name in message["preload"]:
                if name not in self._loaded_late:
                    _load(name)
                    self._loaded_late.add(name)
            try:
                job.pid = fork_child(partial(self._run_in_child, message, job))
            except OSError as error:
                problem = f"cannot start a worker for {target}: {error.strerror}"
        if problem:
            hint = f"`buildsys doctor` names the next step; full log: {message['server_log']}"
            refusal = error_to_json(StageError(problem, hint))
            self._close(job, {"event": "refused", "error": refusal})
        elif timeout_s is not None:
            job.stop_at = time.monotonic() + timeout_s

    def _run_in_child(self, message: Message, job: _RunningJob) -> NoReturn:
        # close the server's descriptors: a copy would hide the end of the original
        self._selector.close()
        listeners = [] if self._listener is None else [self._listener]
        channels = [other.channel for other in self._jobs if other is not job]
        for end in (self._wakeup, self._wakeup_writer, *listeners, *self._controls, *channels):
            end.close()
        for descriptor in (fd for other in self._jobs if other is not job for fd in other.terminal):
            os.close(descriptor)
        os.environ.update(message["environment"])
        run_child(
            job_from_json(message["job"]),
            job.log,
            job.channel.fileno(),
            terminal=job.terminal,
            debugger=message["debugger"],
        )

    def _close(self, job: _RunningJob, last: Message | None = None) -> None:
        """Close the channel of a job, after a last message if anybody wants it."""
        self._jobs.discard(job)
        with contextlib.suppress(KeyError):  # nobody did
            self._selector.unregister(job.channel)
        if last is not None:
            with contextlib.suppress(OSError):
                # a killed child may have written half a line
                job.channel.send(b"\n" + encode(last), socket.MSG_DONTWAIT)
        job.channel.close()
        for descriptor in job.terminal:
            os.close(descriptor)

    def _reap_children(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            # kill the processes it started before wait4, while the pid is still taken
            signal_group(pid, signal.SIGKILL)
            _, exit_status, usage = os.wait4(pid, 0)
            for job in [job for job in self._jobs if job.pid == pid]:
                limit_log(job.log)
                ending = {
                    "event": "exit",
                    "code": os.waitstatus_to_exitcode(exit_status),
                    "timed_out": job.timed_out,
                    "peak_rss_mib": round(usage.ru_maxrss / 1024, 1),
                }
                self._close(job, ending)

    def _enforce_limits(self) -> float | None:
        """Stop jobs at their limits; return the time to the next."""
        now = time.monotonic()
        running = [job for job in self._jobs if job.pid]
        for job in running:
            limit_log(job.log)
            if job.kill_at is not None and now >= job.kill_at:
                signal_group(job.pid, signal.SIGKILL)
                job.kill_at = now + _KILL_GRACE_S
            elif job.kill_at is None and job.stop_at is not None and now >= job.stop_at:
                job.timed_out, job.kill_at = True, now + _KILL_GRACE_S
                signal_group(job.pid, signal.SIGTERM)
        limits = [limit for job in running if (limit := job.kill_at or job.stop_at) is not None]
        limits += [now + _LOG_CHECK_S] if running else []
        limits += [] if self._controls else [self._end_at]
        return max(0.0, min(limits) - now) if limits else None

    def _end_if_idle(self) -> None:
        """End an idle server, unless a client connects at the last moment."""
        idle = not self._controls and time.monotonic() >= self._end_at
        if self._listener is not None and (self._retiring or idle):
            listener, self._listener = self._listener, None
            self._selector.unregister(listener)
            self._unlink()
            # a client that connects after this finds its connection closed, and tries again
            self._accept(listener)
            listener.close()
        if self._listener is None and not self._controls and not self._jobs:
            self._stop()

    def _unlink(self) -> None:
        """Remove address and record, unless they belong to another server by now."""
        with contextlib.suppress(OSError):
            if stamp(self._address) == self._address_stamp:
                remove(self._address)

    def _stop(self) -> NoReturn:
        if self._listener is not None:
            self._unlink()
        for job in self._jobs:
            if job.pid:
                signal_group(job.pid, signal.SIGKILL)
        flush()
        os._exit(0)  # the teardown of torch takes a second


def preload(modules: Iterable[str], without: Iterable[str] = ()) -> str:
    """Import ``modules`` while ``without`` look missing. Return the first one's problem.

    Later ones that cannot be imported are skipped: a stage that needs them reports that.
    """
    hidden = [name for name in without if name not in sys.modules]
    loaded: dict[str, Any] = sys.modules
    loaded.update(dict.fromkeys(hidden))
    try:
        for position, name in enumerate(modules):
            problem = _load(name)
            if problem and position == 0:
                return problem
    finally:
        for name in hidden:  # a stage may import it
            del loaded[name]
    tasks = Path("/proc/self/task")
    threads = str(len(list(tasks.iterdir()))) if tasks.exists() else "an unknown number of"
    log(f"ready, {threads} threads")
    return ""


def _load(name: str) -> str:
    """Import a module; return any problem, as broken libraries raise anything."""
    if name in sys.modules:
        return ""
    log(f"importing {name}")  # the last such line names a library that crashes
    try:
        importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            log(f"{name} is not installed")
            return f"{name} is not installed"
        traceback.print_exc()
        return f"cannot import {name}: {type(error).__name__}: {error}"
    return ""


def main() -> NoReturn:
    """Load libraries, then serve clients."""
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    # OpenBLAS, the only library here that starts threads at import, handles forks itself
    warnings.filterwarnings(
        "ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning
    )
    start = json.loads(sys.argv[1])
    here = str(Path.cwd())
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]
    os.chdir("/")  # the project may be moved or deleted
    server = Server(start)
    gc.disable()  # a collection would write to the pages shared with the children
    server.serve(preload(start["preload"], start["without"]))


if __name__ == "__main__":
    main()
