"""The loop of a worker server: takes jobs from its connections and forks a child for each.

Single-threaded on purpose: a fork copies one thread only. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from buildsys.errors import StageError
from buildsys.worker.child import run_child
from buildsys.worker.doorway import Doorway
from buildsys.worker.lifeline import die_with_parent
from buildsys.worker.preload import load
from buildsys.worker.protocol import LineBuffer, Message, encode, error_to_json, job_from_json

_KILL_GRACE_S = 2.0  # between SIGTERM and SIGKILL
_RETRY_S = 0.05
_OUR_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)


@dataclass(eq=False)
class _Connection:
    """One orchestrator."""

    control: socket.socket
    buffer: LineBuffer = field(default_factory=LineBuffer)
    descriptors: list[int] = field(default_factory=list)  # of jobs that have not arrived as a whole


@dataclass
class _Running:
    """A child at work."""

    pid: int
    connection: _Connection
    fate: socket.socket
    stop_at: float | None  # monotonic; then SIGTERM
    kill_at: float | None = None  # monotonic; then SIGKILL
    timed_out: bool = False


class Server:
    """Forks a child per job and tells the orchestrator how each one ended.

    With a ``parent`` it serves that process alone, over its one connection, and ends with it. With a ``doorway``
    it serves whoever comes, and ends ``idle_s`` after the last has gone.
    """

    def __init__(
        self,
        control: socket.socket | None = None,
        *,
        parent: int | None = None,
        doorway: Doorway | None = None,
        idle_s: float = 0.0,
    ) -> None:
        self._parent = parent
        self._doorway = doorway
        self._idle_s = idle_s
        self._leave_at = time.monotonic() + idle_s  # when it has no connection
        self._pid = os.getpid()
        self._problem = ""
        self._running: dict[int, _Running] = {}
        self._connections: set[_Connection] = set()
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wakeup_writer = socket.socketpair()
        self._catch_signals()
        if control is not None:
            self._add(control)
        if doorway is not None:
            self._selector.register(doorway.listener, selectors.EVENT_READ, doorway)

    def _catch_signals(self) -> None:
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the orchestrator's to handle
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wakeup socket is what ends the wait
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        signal.signal(signal.SIGHUP, lambda *_: self._stop())
        signal.signal(signal.SIGUSR1, lambda *_: self._stop_if_orphan())
        if self._parent is not None:
            # sent when the *thread* that started this server ends, which need not be the end of its process
            die_with_parent(self._parent, signal.SIGUSR1)

    def serve(self, problem: str) -> NoReturn:
        """Take jobs until nobody can have one any more; with a ``problem`` every job fails with it."""
        self._problem = problem
        self._leave_at = 0.0 if problem else time.monotonic() + self._idle_s
        if self._doorway is not None and not problem:
            self._doorway.note_ready()
        while True:
            for key, _ in self._selector.select(self._time_to_next_limit()):
                self._handle(key)
            self._reap()
            self._enforce_limits()
            self._leave_if_idle()

    def _handle(self, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, _Connection):
            self._read(key.data)
        elif isinstance(key.data, Doorway):
            for channel in key.data.accept():
                self._add(channel)
        elif isinstance(key.data, _Running):
            self._cancel(key.data)
        else:
            self._drain_wakeup()

    def _add(self, control: socket.socket) -> None:
        connection = _Connection(control)
        self._connections.add(connection)
        self._selector.register(control, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> None:
        try:
            piece, descriptors, _, _ = socket.recv_fds(connection.control, 1 << 16, 64)
        except ConnectionResetError:
            piece, descriptors = b"", []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        connection.descriptors += descriptors
        if not piece:
            self._drop(connection)
            return
        for message in connection.buffer.feed(piece):
            if "retire" in message:
                self._leave_at = 0.0
                continue
            events, fate = connection.descriptors[:2]
            del connection.descriptors[:2]
            self._start(message, connection, events, socket.socket(fileno=fate))

    def _drop(self, connection: _Connection) -> None:
        """Kill what runs for an orchestrator that has gone."""
        if self._parent is not None:
            self._stop()
        for job in self._running.values():
            if job.connection is connection:
                _signal_group(job.pid, signal.SIGKILL)
        self._connections.discard(connection)
        self._selector.unregister(connection.control)
        connection.control.close()  # which tells it that its children are no more
        for descriptor in connection.descriptors:
            os.close(descriptor)

    def _start(self, message: Message, connection: _Connection, events: int, fate: socket.socket) -> None:
        problem, pid = self._problem, 0
        for name in message["preload"] if not problem else ():
            load(name)
        if not problem:
            try:
                pid = self._fork(message, events, fate)
            except OSError as error:  # no memory or no process left
                problem = f"cannot start a worker for {message['job']['target']}: {error.strerror}"
        os.close(events)
        if problem:
            hint = f"full log: {message['server_log']}"
            _tell(fate, {"event": "refused", "error": error_to_json(StageError(problem, hint))})
            fate.close()
            return
        timeout_s = message["timeout_s"]
        stop_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._running[pid] = job = _Running(pid, connection, fate, stop_at)
        self._selector.register(fate, selectors.EVENT_READ, job)
        _tell(fate, {"event": "started", "pid": pid})
        self._note_use()

    def _fork(self, message: Message, events: int, fate: socket.socket) -> int:
        _flush()
        gc.freeze()  # a collection in the child leaves the shared pages alone
        signal.pthread_sigmask(signal.SIG_BLOCK, _OUR_SIGNALS)  # a child must not run the server's handlers
        try:
            pid = os.fork()
            if pid == 0:
                self._become_child(message, events, fate)
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OUR_SIGNALS)

    def _become_child(self, message: Message, events: int, fate: socket.socket) -> NoReturn:
        try:
            os.setsid()  # its own group: a time-out reaches its processes, Ctrl-C does not
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, *_OUR_SIGNALS):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OUR_SIGNALS)
            die_with_parent(self._pid, signal.SIGKILL)
            self._close_descriptors(fate)
            gc.enable()
            os.environ.update(message["environment"])
            run_child(job_from_json(message["job"]), Path(message["log"]), events)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)  # never back into the server's loop; run_child itself does not return

    def _close_descriptors(self, fate: socket.socket) -> None:
        """Close in a child what is the server's: an end that stays open here would not tell of the other's end."""
        self._selector.close()
        if self._doorway is not None:
            self._doorway.listener.close()
        fates = (job.fate for job in self._running.values())
        controls = (connection.control for connection in self._connections)
        for end in (self._wakeup, self._wakeup_writer, fate, *fates, *controls):
            end.close()
        for descriptor in (number for connection in self._connections for number in connection.descriptors):
            os.close(descriptor)

    def _cancel(self, job: _Running) -> None:
        """Stop the child whose orchestrator thread has hung up."""
        self._selector.unregister(job.fate)
        _signal_group(job.pid, signal.SIGKILL)

    def _reap(self) -> None:
        while (pid := _ended_child()) is not None:
            _signal_group(pid, signal.SIGKILL)  # what it started; before wait4, while the pid is still its own
            _, status, usage = os.wait4(pid, 0)
            job = self._running.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            peak_mib = round(usage.ru_maxrss / 1024, 1)
            _tell(job.fate, {"event": "exit", "code": code, "timed_out": job.timed_out, "peak_rss_mib": peak_mib})
            with contextlib.suppress(KeyError):  # a cancelled job's is no longer watched
                self._selector.unregister(job.fate)
            job.fate.close()
            self._note_use()

    def _note_use(self) -> None:
        if self._doorway is not None:
            self._doorway.note_use()
            if self._leave_at:  # it was not told to leave
                self._leave_at = time.monotonic() + self._idle_s

    def _time_to_next_limit(self) -> float | None:
        limits = [limit for job in self._running.values() if (limit := job.kill_at or job.stop_at) is not None]
        if self._parent is None and not self._connections:
            limits.append(max(self._leave_at, time.monotonic() + _RETRY_S))
        return max(0.0, min(limits) - time.monotonic()) if limits else None

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        for job in self._running.values():
            if job.kill_at is not None and now >= job.kill_at:
                _signal_group(job.pid, signal.SIGKILL)
                job.kill_at = now + _KILL_GRACE_S
            elif job.kill_at is None and job.stop_at is not None and now >= job.stop_at:
                job.timed_out, job.kill_at = True, now + _KILL_GRACE_S
                _signal_group(job.pid, signal.SIGTERM)

    def _leave_if_idle(self) -> None:
        """End a server that nobody needs, unless somebody has come at the last moment."""
        if self._parent is not None or self._connections or time.monotonic() < self._leave_at:
            return
        if self._doorway is not None:
            try:
                late = self._doorway.close()
            except OSError:  # somebody is about to come
                return
            self._selector.unregister(self._doorway.listener)
            self._doorway = None
            for channel in late:
                self._add(channel)
        if not self._connections:
            self._stop()

    def _drain_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(4096)

    def _stop_if_orphan(self) -> None:
        if self._parent is not None and os.getppid() != self._parent:
            self._stop()

    def _stop(self) -> NoReturn:
        for pid in self._running:
            _signal_group(pid, signal.SIGKILL)
        if self._doorway is not None:
            self._doorway.unlink()
        _flush()
        os._exit(0)  # the teardown of torch takes a second


def _ended_child() -> int | None:
    """Return the pid of a child that has ended and is not yet reaped."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return ended.si_pid if ended is not None else None


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # just forked: not yet the leader of its group
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _tell(fate: socket.socket, message: Message) -> None:
    """Send a message that is smaller than any socket's buffer; an orchestrator that hung up misses it."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        fate.sendall(encode(message))


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
