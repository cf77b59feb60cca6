"""The program of worker processes: ``python -m buildsys.workers.server.server JSON``.

A server imports libraries once, then forks a child for each job. Single-threaded on purpose: a fork
copies one thread only. A stage in the foreground runs in this process itself. Standard library
only, apart from those libraries.
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
from buildsys.system.processes import (
    adopt_orphans,
    children_of,
    descendants_of,
    die_with_parent,
    kill_process,
)
from buildsys.workers.protocol import LineBuffer, Message, encode, error_to_json, job_from_json
from buildsys.workers.registry import Listener, idle_limit_s
from buildsys.workers.server.child import (
    flush,
    fork_child,
    limit_log,
    log,
    run_child,
    signal_group,
)

_KILL_GRACE_S = 2.0  # between SIGTERM and SIGKILL
_RETRY_S = 0.05
_LOG_CHECK_S = 1.0  # between two looks at the sizes of logs
_LONGEST_REQUEST = 64 << 20  # bytes; manifests are read up to a fraction of that
_STOP_LIMIT_S = 0.5  # to kill the jobs and their processes


@dataclass(eq=False)
class _Connection:
    """The connection to one orchestrator."""

    control: socket.socket
    buffer: LineBuffer = field(default_factory=lambda: LineBuffer(_LONGEST_REQUEST))
    descriptors: list[int] = field(default_factory=list)  # of requests not yet complete


@dataclass(eq=False)
class _RunningJob:
    """A running child; times are monotonic."""

    pid: int
    connection: _Connection
    status: socket.socket
    log: Path
    stop_at: float | None  # then SIGTERM
    kill_at: float | None = None  # then SIGKILL
    timed_out: bool = False


class Server:
    """A server with one forked child per job.

    It serves the process that started it and, with ``start["listener"]``, all that connect there.
    It ends ``idle_s`` after the last one disconnected.
    """

    def __init__(self, start: Message) -> None:
        self._listener: Listener | None = None
        self._code = _code()
        self._idle_s: float = start.get("idle_s", 0.0)
        self._end_at = time.monotonic() + self._idle_s  # unless a connection is open then
        self._retiring = False  # accepts no new connections and ends after the last one
        self._problem = ""
        self._loaded_late: set[str] = set()  # or tried to
        self._jobs: dict[int, _RunningJob] = {}  # by pid
        self._of_libraries: set[int] = set()  # processes that libraries started when imported
        self._connections: set[_Connection] = set()
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the orchestrator handles Ctrl-C
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wakeup socket ends the wait
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        signal.signal(signal.SIGHUP, lambda *_: self._stop())
        self._add_connection(socket.socket(fileno=start["control"]))
        if "listener" in start:
            channel = socket.socket(fileno=start["listener"])
            self._listener = Listener(channel, Path(start["path"]))
            self._selector.register(channel, selectors.EVENT_READ, self._listener)

    def serve(self, problem: str) -> NoReturn:
        """Run jobs until nobody can send one. A ``problem`` refuses every job."""
        self._problem = problem
        self._of_libraries = children_of(os.getpid())
        self._retiring = bool(problem)
        self._end_at = time.monotonic() + self._idle_s
        if self._listener is not None:
            self._listener.mark_ready()
        while True:
            for key, _ in self._selector.select(self._enforce_limits()):
                if isinstance(key.data, _Connection):
                    self._receive(key.data)
                elif isinstance(key.data, Listener):
                    self._accept(key.data)
                elif isinstance(key.data, _RunningJob):  # its result is no longer wanted
                    self._selector.unregister(key.data.status)
                    signal_group(key.data.pid, signal.SIGKILL)
                else:
                    with contextlib.suppress(BlockingIOError):
                        self._wakeup.recv(4096)
            self._reap_children()
            self._end_if_idle()

    def _accept(self, listener: Listener) -> None:
        """Add the new connections, or close them if the code of this server is gone."""
        accepted = listener.accept()
        if _code() != self._code:
            listener.unlink()  # at once: the next attempt of these clients starts another server
            self._retiring = True
            for channel in accepted:
                channel.close()
            return
        for channel in accepted:
            self._add_connection(channel)

    def _add_connection(self, control: socket.socket) -> None:
        connection = _Connection(control)
        self._connections.add(connection)
        self._selector.register(control, selectors.EVENT_READ, connection)

    def _receive(self, connection: _Connection) -> None:
        try:
            piece, descriptors, _, _ = socket.recv_fds(connection.control, 1 << 16, 64)
        except ConnectionResetError:
            piece, descriptors = b"", []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        connection.descriptors += descriptors
        if not piece:  # the orchestrator is gone
            self._drop(connection)
            return
        try:
            for message in connection.buffer.feed(piece):
                if "retire" in message:
                    self._retiring = True
                else:
                    self._start_job(message, connection)
        except Exception:  # not sent by a client of this version; the jobs of others go on
            traceback.print_exc()
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        """End a connection and its jobs."""
        for job in self._jobs.values():
            if job.connection is connection:
                signal_group(job.pid, signal.SIGKILL)
        self._connections.discard(connection)
        self._selector.unregister(connection.control)
        for descriptor in connection.descriptors:
            os.close(descriptor)
        connection.descriptors.clear()
        self._end_at = time.monotonic() + self._idle_s
        self._close_unused(connection)

    def _start_job(self, message: Message, connection: _Connection) -> None:
        # whatever can be wrong with a message is found before its descriptors are taken
        preload = [name for name in message["preload"] if name not in self._loaded_late]
        timeout_s = None if message["timeout_s"] is None else float(message["timeout_s"])
        target, server_log = message["job"]["target"], message["server_log"]
        log_file = Path(message["log"])
        self._idle_s = idle_limit_s(message["environment"])  # that of the latest run
        events, number = connection.descriptors[:2]
        status = socket.socket(fileno=number)
        del connection.descriptors[:2]
        problem, pid = self._problem, 0
        if not problem:
            before = children_of(os.getpid()) if preload else set()
            for name in preload:
                _load(name)
                self._loaded_late.add(name)
            if preload:
                self._of_libraries |= children_of(os.getpid()) - before
            try:
                pid = fork_child(partial(self._run_in_child, message, status, events))
            except OSError as error:
                problem = f"cannot start a worker for {target}: {error.strerror}"
        # at once: while it is open here, nobody learns of the child's end should this process hang
        os.close(events)
        if problem:
            hint = f"`doit doctor` names the next step; full log: {server_log}"
            refusal = StageError(problem, hint)
            _send_status(status, {"event": "refused", "error": error_to_json(refusal)})
            return
        stop_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._jobs[pid] = job = _RunningJob(pid, connection, status, log_file, stop_at)
        self._selector.register(status, selectors.EVENT_READ, job)

    def _run_in_child(self, message: Message, status: socket.socket, events: int) -> NoReturn:
        # close the server's descriptors: a copy would hide the end of the original
        self._selector.close()
        if self._listener is not None:
            self._listener.socket.close()
        jobs = self._jobs.values()
        connections = self._connections | {job.connection for job in jobs}
        sockets = [status, self._wakeup, self._wakeup_writer, *(job.status for job in jobs)]
        for end in (*sockets, *(connection.control for connection in connections)):
            end.close()
        for connection in self._connections:
            for descriptor in connection.descriptors:
                os.close(descriptor)
        os.environ.update(message["environment"])
        run_child(job_from_json(message["job"]), Path(message["log"]), events)

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
            self._of_libraries.discard(pid)
            job = self._jobs.pop(pid, None)
            self._kill_orphans()
            if job is None:  # started by a library, or left by a job
                continue
            limit_log(job.log)
            ending = {
                "event": "exit",
                "code": os.waitstatus_to_exitcode(exit_status),
                "timed_out": job.timed_out,
                "peak_rss_mib": round(usage.ru_maxrss / 1024, 1),
            }
            with contextlib.suppress(KeyError):  # that of a cancelled job is not registered
                self._selector.unregister(job.status)
            _send_status(job.status, ending)
            self._close_unused(job.connection)

    def _kill_orphans(self) -> bool:
        """Kill the processes left by ended jobs. Return True if there were any.

        While a job runs, it is the parent of its orphans itself. An orphan of an orphan becomes a
        child of this server when its parent has ended, which is reported by another SIGCHLD.
        """
        left = children_of(os.getpid()) - self._jobs.keys() - self._of_libraries
        for pid in left:
            kill_process(pid)
        return bool(left)

    def _close_unused(self, connection: _Connection) -> None:
        """Close a dropped connection after its jobs: its orchestrator waits for that."""
        in_use = any(job.connection is connection for job in self._jobs.values())
        if connection not in self._connections and not in_use:
            connection.control.close()

    def _enforce_limits(self) -> float | None:
        """Stop jobs at their limits; return the time to the next."""
        now = time.monotonic()
        for job in self._jobs.values():
            limit_log(job.log)
            if job.kill_at is not None and now >= job.kill_at:
                signal_group(job.pid, signal.SIGKILL)
                job.kill_at = now + _KILL_GRACE_S
            elif job.kill_at is None and job.stop_at is not None and now >= job.stop_at:
                job.timed_out, job.kill_at = True, now + _KILL_GRACE_S
                signal_group(job.pid, signal.SIGTERM)
        deadlines = [job.kill_at or job.stop_at for job in self._jobs.values()]
        if self._jobs:
            deadlines.append(now + _LOG_CHECK_S)
        if self._listener is not None and (self._retiring or not self._connections):
            soon = now + _RETRY_S
            deadlines.append(soon if self._retiring else max(self._end_at, soon))
        limits = [deadline for deadline in deadlines if deadline is not None]
        return max(0.0, min(limits) - now) if limits else None

    def _end_if_idle(self) -> None:
        """End an idle server, unless a client connects at the last moment."""
        idle = not self._connections and time.monotonic() >= self._end_at
        if self._listener is not None and (self._retiring or idle):
            try:
                late = self._listener.close()
            except OSError:  # a client may be about to connect; tried again soon
                return
            self._selector.unregister(self._listener.socket)
            self._listener = None
            for channel in late:
                self._add_connection(channel)
        if self._listener is None and not self._connections:
            self._stop()

    def _stop(self) -> NoReturn:
        if self._listener is not None:
            self._listener.unlink()
        # Their processes first: a large job takes seconds to end, and if this process had ended
        # before it, init would adopt the rest.
        for pid in [*self._jobs]:
            for process in (*descendants_of(pid), pid):
                kill_process(process)
        self._jobs.clear()
        self._of_libraries.clear()
        deadline = time.monotonic() + _STOP_LIMIT_S
        while self._kill_orphans() and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.001)
        flush()
        os._exit(0)  # the teardown of torch takes a second


def _code() -> list[object]:
    """Stamp the files that tell whether the code of this process still exists."""
    return [stamp(path) for path in (__file__, sys.executable)]


def _send_status(status: socket.socket, message: Message) -> None:
    """Send a small last message, unless the client is gone."""
    with status, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        status.sendall(encode(message))


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
    """Serve clients, or run one stage in the foreground."""
    faulthandler.enable()
    # OpenBLAS, the only library here that starts threads at import, handles forks itself
    warnings.filterwarnings(
        "ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning
    )
    start = json.loads(sys.argv[1])
    here = str(Path.cwd())
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]
    if "request" in start:
        run_in_foreground(start)
    adopt_orphans()
    os.chdir("/")  # the project may be moved or deleted
    server = Server(start)
    gc.disable()  # a collection would write to the pages shared with the children
    server.serve(preload(start["preload"], start["without"]))


def run_in_foreground(start: Message) -> NoReturn:
    """Run the stage of ``start["request"]`` in this process, with its output on the terminal."""
    die_with_parent(start["parent"], signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent ignores it
    request = json.loads(Path(start["request"]).read_bytes())
    events = os.open(request["events"], os.O_WRONLY | os.O_CREAT)
    with contextlib.redirect_stdout(io.StringIO()):  # the log of a server
        problem = preload(start["preload"], start["without"])
    if problem:
        os.write(events, encode({"event": "error", "error": error_to_json(StageError(problem))}))
        os._exit(0)
    run_child(job_from_json(request["job"]), None, events, debugger=request["debugger"])


if __name__ == "__main__":
    main()
