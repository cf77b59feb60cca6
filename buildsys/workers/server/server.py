"""The worker server: its listening socket, and its loop to fork children.

Single-threaded on purpose: a fork copies one thread only. Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import signal
import socket
import time
from pathlib import Path
from typing import NoReturn

from buildsys.errors import StageError
from buildsys.system.processes import die_with_parent
from buildsys.workers import registry
from buildsys.workers.protocol import LineBuffer, Message, encode, error_to_json, job_from_json
from buildsys.workers.server.child import run_child
from buildsys.workers.server.forker import flush, fork_child, signal_group
from buildsys.workers.server.preload import load

_KILL_GRACE_S = 2.0  # between SIGTERM and SIGKILL
_RETRY_S = 0.05


@dataclasses.dataclass(eq=False)
class _Connection:
    """The connection to one orchestrator."""

    control: socket.socket
    buffer: LineBuffer = dataclasses.field(default_factory=LineBuffer)
    descriptors: list[int] = dataclasses.field(default_factory=list)  # of requests not yet complete


@dataclasses.dataclass(eq=False)
class _RunningJob:
    """A running child; times are monotonic."""

    pid: int
    connection: _Connection
    status: socket.socket
    stop_at: float | None  # then SIGTERM
    kill_at: float | None = None  # then SIGKILL
    timed_out: bool = False


class Listener:
    """A listening socket with its address file and record."""

    def __init__(self, listener: socket.socket, path: Path) -> None:
        listener.setblocking(False)
        self.socket = listener
        self._path = path
        self._inode = self._current_inode()

    def accept(self) -> list[socket.socket]:
        """Return new connections of this user; close those of others."""
        accepted = []
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    channel, _ = self.socket.accept()
                except ConnectionAbortedError:
                    continue
                channel.setblocking(True)
                if registry.peer_uid(channel) == os.geteuid():
                    accepted.append(channel)
                else:
                    channel.close()
        return accepted

    def mark_ready(self) -> None:
        """Record the end of the preload."""
        # on failure, clients only wait longer for a server that hangs
        with contextlib.suppress(OSError), registry.locked(self._path.parent):
            record = registry.read_record(self._path)
            if record is not None and record.pid == os.getpid():
                registry.write_record(self._path, dataclasses.replace(record, ready=True))

    def touch(self) -> None:
        """Record the time of the last job, for display only."""
        with contextlib.suppress(OSError):
            os.utime(registry.record_path(self._path))

    def close(self) -> list[socket.socket]:
        """Retire the address. Return the connections made before.

        Raises: BlockingIOError: another process is connecting or starting a server; try again.
        """
        with contextlib.ExitStack() as stack:
            if self._path.parent.is_dir():
                stack.enter_context(registry.locked(self._path.parent, 0.0))
            self.unlink()
            accepted = self.accept()
            self.socket.close()
        return accepted

    def unlink(self) -> None:
        """Remove address and record, unless they belong to another server by now."""
        with contextlib.suppress(OSError):
            if self._current_inode() == self._inode:
                registry.remove(self._path)

    def _current_inode(self) -> int:
        try:
            return self._path.stat().st_ino
        except OSError:
            return 0


class Server:
    """A server with one forked child per job.

    With a ``parent`` it serves that process over one connection and ends with it. With a
    ``listener`` it serves all that connect, and ends ``idle_s`` after the last one disconnected.
    """

    def __init__(
        self,
        control: socket.socket | None = None,
        *,
        parent: int | None = None,
        listener: Listener | None = None,
        idle_s: float = 0.0,
    ) -> None:
        self._parent = parent
        self._listener = listener
        self._idle_s = idle_s
        self._end_at = time.monotonic() + idle_s  # unless a connection is open then
        self._retiring = False  # accepts no new connections and ends after the last one
        self._problem = ""
        self._loaded_late: set[str] = set()  # or tried to
        self._jobs: dict[int, _RunningJob] = {}  # by pid
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
        signal.signal(signal.SIGUSR1, lambda *_: self._stop_if_orphaned())
        if parent is not None:
            die_with_parent(parent, signal.SIGUSR1)
        if control is not None:
            self._add_connection(control)
        if listener is not None:
            self._selector.register(listener.socket, selectors.EVENT_READ, listener)

    def serve(self, problem: str) -> NoReturn:
        """Run jobs until nobody can send one. A ``problem`` refuses every job."""
        self._problem = problem
        self._retiring = bool(problem)
        self._end_at = time.monotonic() + self._idle_s
        if self._listener is not None:
            self._listener.mark_ready()
        while True:
            for key, _ in self._selector.select(self._time_to_next_deadline()):
                if isinstance(key.data, _Connection):
                    self._receive(key.data)
                elif isinstance(key.data, Listener):
                    for channel in key.data.accept():
                        self._add_connection(channel)
                elif isinstance(key.data, _RunningJob):  # its result is no longer wanted
                    self._selector.unregister(key.data.status)
                    signal_group(key.data.pid, signal.SIGKILL)
                else:
                    with contextlib.suppress(BlockingIOError):
                        self._wakeup.recv(4096)
            self._reap_children()
            self._enforce_limits()
            self._end_if_idle()

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
        if not piece:
            # the orchestrator is gone: its jobs end
            if self._parent is not None:
                self._stop()
            for job in self._jobs.values():
                if job.connection is connection:
                    signal_group(job.pid, signal.SIGKILL)
            self._connections.discard(connection)
            self._selector.unregister(connection.control)
            self._close_if_unused(connection)
            for descriptor in connection.descriptors:
                os.close(descriptor)
            connection.descriptors.clear()
            self._end_at = time.monotonic() + self._idle_s
            self._note_use()
            return
        for message in connection.buffer.feed(piece):
            if "retire" in message:
                self._retiring = True
            else:
                self._start_job(message, connection)

    def _close_if_unused(self, connection: _Connection) -> None:
        """Close a dropped connection without jobs. Its orchestrator waits for that."""
        if not any(job.connection is connection for job in self._jobs.values()):
            connection.control.close()

    def _start_job(self, message: Message, connection: _Connection) -> None:
        self._idle_s = registry.idle_limit_s(
            message["environment"]
        )  # that of the latest run applies
        events, number = connection.descriptors[:2]
        del connection.descriptors[:2]
        status = socket.socket(fileno=number)
        problem, pid = self._problem, 0
        if not problem:
            for name in message["preload"]:
                if name not in self._loaded_late:
                    load(name)
                    self._loaded_late.add(name)

            def work() -> NoReturn:
                self._close_inherited()
                status.close()
                os.environ.update(message["environment"])
                run_child(job_from_json(message["job"]), Path(message["log"]), events)

            try:
                pid = fork_child(work)
            except OSError as error:
                problem = f"cannot start a worker for {message['job']['target']}: {error.strerror}"
        # at once: while it is open here, nobody learns of the child's end should this process hang
        os.close(events)
        if problem:
            refusal = StageError(problem, f"full log: {message['server_log']}")
            _send_status(status, {"event": "refused", "error": error_to_json(refusal)})
            status.close()
            return
        timeout_s = message["timeout_s"]
        stop_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._jobs[pid] = job = _RunningJob(pid, connection, status, stop_at)
        self._selector.register(status, selectors.EVENT_READ, job)
        self._note_use()

    def _close_inherited(self) -> None:
        """Close the server's descriptors in a child. A copy would hide the original's end."""
        self._selector.close()
        if self._listener is not None:
            self._listener.socket.close()
        connections = self._connections | {job.connection for job in self._jobs.values()}
        for end in (
            self._wakeup,
            self._wakeup_writer,
            *(job.status for job in self._jobs.values()),
            *(connection.control for connection in connections),
        ):
            end.close()
        for connection in self._connections:
            for descriptor in connection.descriptors:
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
            job = self._jobs.pop(pid, None)
            if job is None:  # started by a library
                continue
            ending = {
                "event": "exit",
                "code": os.waitstatus_to_exitcode(exit_status),
                "timed_out": job.timed_out,
                "peak_rss_mib": round(usage.ru_maxrss / 1024, 1),
            }
            _send_status(job.status, ending)
            with contextlib.suppress(KeyError):  # that of a cancelled job is not registered
                self._selector.unregister(job.status)
            job.status.close()
            if job.connection not in self._connections:
                self._close_if_unused(job.connection)
            self._note_use()

    def _note_use(self) -> None:
        if self._listener is not None:
            self._listener.touch()

    def _time_to_next_deadline(self) -> float | None:
        deadlines = [job.kill_at or job.stop_at for job in self._jobs.values()]
        if self._listener is not None and (self._retiring or not self._connections):
            soon = time.monotonic() + _RETRY_S
            deadlines.append(soon if self._retiring else max(self._end_at, soon))
        known = [deadline for deadline in deadlines if deadline is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        for job in self._jobs.values():
            if job.kill_at is not None and now >= job.kill_at:
                signal_group(job.pid, signal.SIGKILL)
                job.kill_at = now + _KILL_GRACE_S
            elif job.kill_at is None and job.stop_at is not None and now >= job.stop_at:
                job.timed_out, job.kill_at = True, now + _KILL_GRACE_S
                signal_group(job.pid, signal.SIGTERM)

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

    def _stop_if_orphaned(self) -> None:
        # the signal also arrives when only the *thread* that started this server ends
        if self._parent is not None and os.getppid() != self._parent:
            self._stop()

    def _stop(self) -> NoReturn:
        for pid in self._jobs:
            signal_group(pid, signal.SIGKILL)
        if self._listener is not None:
            self._listener.unlink()
        flush()
        os._exit(0)  # the teardown of torch takes a second


def _send_status(status: socket.socket, message: Message) -> None:
    """Send a small message, unless the client is gone."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        status.sendall(encode(message))
