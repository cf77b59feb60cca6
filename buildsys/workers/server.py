"""The program of worker processes: ``python -m buildsys.workers.server JSON``.

A server imports libraries once, then forks a child for each job. Single-threaded on purpose: a fork
copies one thread only. Standard library only, apart from those libraries.
"""

import contextlib
import faulthandler
import gc
import importlib
import io
import json
import math
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
from buildsys.system.processes import adopt_orphans, children_of
from buildsys.workers.child import flush, fork_child, log, run_child, signal_group
from buildsys.workers.job import RETIRE, TERMINAL, Message, encode, error_to_json, job_from_json


@dataclass(eq=False)
class _Client:
    """The connection of a run, with its child as soon as one runs; ``stop_at`` is monotonic."""

    channel: socket.socket
    request: bytes = b""
    terminal: list[int] = field(default_factory=list)  # descriptors, in the foreground
    pid: int = 0
    stop_at: float = math.inf
    timed_out: bool = False


class Server:
    """A server with one forked child per job.

    It serves all that connect to ``start["listener"]``, and ends ``idle_s`` after the last one
    disconnected.
    """

    def __init__(self, start: Message) -> None:
        self._idle_s: float = start["idle_s"]
        self._end_at = 0.0  # unless there is a connection
        self._retiring = False  # ends with the last connection
        self._loaded_late: set[str] = set()  # or tried to
        self._clients: set[_Client] = set()
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
        adopt_orphans()
        self._listener = socket.socket(fileno=start["listener"])
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._address = Path(start["path"])

    def serve(self) -> NoReturn:
        """Run jobs until nobody can send one."""
        while True:
            for key, _ in self._selector.select(self._enforce_limits()):
                key.data(key.fileobj)
            self._reap_children()
            if not self._clients and (self._retiring or time.monotonic() >= self._end_at):
                # a run that connects from here on is refused, and starts another server
                self._stop()

    def _wake_up(self, wakeup: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            wakeup.recv(4096)

    def _accept(self, listener: socket.socket) -> None:
        """Add a new connection."""
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            channel, _ = listener.accept()
            channel.setblocking(True)
            connection = _Client(channel)
            self._clients.add(connection)
            receive = partial(self._receive, connection)
            self._selector.register(channel, selectors.EVENT_READ, receive)

    def _receive(self, job: _Client, channel: socket.socket) -> None:
        """Receive the request of a job, or the end of its connection: nobody wants its result."""
        piece, descriptors = b"", list[int]()
        with contextlib.suppress(ConnectionResetError):
            piece, descriptors, _, _ = socket.recv_fds(channel, 1 << 16, len(TERMINAL))
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        job.terminal += descriptors
        job.request += piece
        if piece and not job.request.endswith(b"\n"):
            return
        if job.request == RETIRE:
            self._retiring = True
        elif piece and not job.pid:
            try:
                self._start_job(job, json.loads(job.request))
            except Exception:  # not sent by a client of this version
                traceback.print_exc()
            else:
                return
        if job.pid:
            self._selector.unregister(channel)
            signal_group(job.pid, signal.SIGKILL)
        else:
            self._close(job)

    def _start_job(self, job: _Client, message: Message) -> None:
        timeout_s = message["timeout_s"]
        self._idle_s = message["idle_s"]  # of the latest run
        for name in message["preload"]:
            if name not in self._loaded_late:
                _load(name)
                self._loaded_late.add(name)
        try:
            job.pid = fork_child(partial(self._run_in_child, message, job))
        except OSError as error:
            problem = f"cannot start a worker for {message['job']['target']}: {error.strerror}"
            refusal = error_to_json(StageError(problem, "free memory, or allow more processes"))
            self._close(job, {"event": "error", "error": refusal})
            return
        if timeout_s is not None:
            job.stop_at = time.monotonic() + timeout_s

    def _run_in_child(self, message: Message, job: _Client) -> NoReturn:
        # close the server's descriptors: a copy would hide the end of the original
        self._selector.close()
        others = self._clients - {job}
        for end in (self._wakeup, self._wakeup_writer, self._listener):
            end.close()
        for other in others:
            other.channel.close()
            for descriptor in other.terminal:
                os.close(descriptor)
        os.environ.update(message["environment"])
        run_child(
            job_from_json(message["job"]),
            message["log"] and Path(message["log"]),
            job.channel.fileno(),
            terminal=job.terminal,
            debugger=message["debugger"],
        )

    def _close(self, job: _Client, last: Message | None = None) -> None:
        """Close a connection, after a last message if anybody wants it."""
        self._clients.discard(job)
        self._end_at = time.monotonic() + self._idle_s
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
            _, exit_status, _ = os.wait4(pid, 0)
            code = os.waitstatus_to_exitcode(exit_status)
            # those that left its group have become children of this process
            for orphan in children_of(os.getpid()) - {job.pid for job in self._clients}:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(orphan, signal.SIGKILL)
            for job in [job for job in self._clients if job.pid == pid]:
                self._close(job, {"event": "exit", "code": code, "timed_out": job.timed_out})

    def _enforce_limits(self) -> float | None:
        """Stop jobs at their limits; return the time to the next."""
        now = time.monotonic()
        running = [job for job in self._clients if job.pid and not job.timed_out]
        for job in running:
            if now >= job.stop_at:
                job.timed_out = True
                signal_group(job.pid, signal.SIGKILL)
        limits = [job.stop_at for job in running if job.stop_at > now]
        next_limit = min(limits if self._clients else [self._end_at], default=math.inf)
        return None if math.isinf(next_limit) else max(0.0, next_limit - now)

    def _stop(self) -> NoReturn:
        for path in (self._address, self._address.with_suffix(".json")):
            path.unlink(missing_ok=True)
        for job in self._clients:
            if job.pid:
                signal_group(job.pid, signal.SIGKILL)
        flush()
        os._exit(0)  # the teardown of torch takes a second


def preload(modules: Iterable[str], without: Iterable[str] = ()) -> None:
    """Import ``modules`` while ``without`` look missing.

    What cannot be imported is skipped: a stage that needs it reports that.
    """
    hidden = [name for name in without if name not in sys.modules]
    loaded: dict[str, Any] = sys.modules
    loaded.update(dict.fromkeys(hidden))
    try:
        for name in modules:
            _load(name)
    finally:
        for name in hidden:  # a stage may import it
            del loaded[name]
    tasks = Path("/proc/self/task")
    threads = str(len(list(tasks.iterdir()))) if tasks.exists() else "an unknown number of"
    log(f"ready, {threads} threads")


def _load(name: str) -> None:
    if name in sys.modules:
        return
    log(f"importing {name}")  # the last such line names a library that crashes
    try:
        importlib.import_module(name)
    except Exception as error:  # broken libraries raise anything
        log(f"cannot import {name}: {type(error).__name__}: {error}")


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
    preload(start["preload"], start["without"])
    server.serve()


if __name__ == "__main__":
    main()
