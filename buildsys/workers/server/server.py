"""The loop of a worker server: takes jobs from its connections and forks a child for each.

Single-threaded on purpose: a fork copies one thread only. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from buildsys.errors import StageError
from buildsys.system.processes import die_with_parent
from buildsys.workers.protocol import LineBuffer, Message, encode, error_to_json
from buildsys.workers.registry import idle_limit_s
from buildsys.workers.server.forker import Forker, flush, signal_group
from buildsys.workers.server.listener import Doorway
from buildsys.workers.server.preload import load

_KILL_GRACE_S = 2.0  # between SIGTERM and SIGKILL
_RETRY_S = 0.05


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
        self._leave_at = time.monotonic() + idle_s  # if it has no connection then
        self._retiring = (
            False  # to be found by nobody any more, and to leave after the last connection
        )
        self._pid = os.getpid()
        self._problem = ""
        self._forker = Forker(self._close_inherited)
        self._loaded_late: set[str] = set()  # or tried to
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
        self._retiring = bool(problem)
        self._leave_at = time.monotonic() + self._idle_s
        if self._doorway is not None:
            self._doorway.note_ready()
        while True:
            ready = [] if self._forker.is_prepared else self._selector.select(0)
            if not ready:
                self._prepare()
                ready = self._selector.select(self._time_to_next_limit())
            for key, _ in ready:
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
                self._retiring = True
                continue
            self._start(message, connection)

    def _drop(self, connection: _Connection) -> None:
        """Kill what runs for an orchestrator that has gone."""
        if self._parent is not None:
            self._stop()
        for job in self._running.values():
            if job.connection is connection:
                signal_group(job.pid, signal.SIGKILL)
        self._connections.discard(connection)
        self._selector.unregister(connection.control)
        self._hang_up(connection)
        for descriptor in connection.descriptors:
            os.close(descriptor)
        connection.descriptors.clear()
        self._leave_at = time.monotonic() + self._idle_s
        self._note_use()

    def _hang_up(self, connection: _Connection) -> None:
        """Tell an orchestrator that waits for it that nothing runs for it any more, once that is so."""
        if not any(job.connection is connection for job in self._running.values()):
            connection.control.close()

    def _start(self, message: Message, connection: _Connection) -> None:
        self._idle_s = idle_limit_s(message["environment"])  # what the latest run wants holds
        problem, pid = self._problem, 0
        if not problem:
            try:
                pid = self._waiting_child(message["preload"])
            except OSError as error:  # no memory or no process left
                problem = f"cannot start a worker for {message['job']['target']}: {error.strerror}"
        events, number = connection.descriptors[:2]
        del connection.descriptors[:2]  # not before the fork, which closes them in the child
        fate = socket.socket(fileno=number)
        if problem:
            hint = f"full log: {message['server_log']}"
            _tell(fate, {"event": "refused", "error": error_to_json(StageError(problem, hint))})
            fate.close()
            os.close(events)
            return
        timeout_s = message["timeout_s"]
        stop_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._running[pid] = job = _Running(pid, connection, fate, stop_at)
        self._selector.register(fate, selectors.EVENT_READ, job)
        _tell(fate, {"event": "started", "pid": pid})  # before the child can say anything
        self._forker.hand_over(message, events)
        os.close(
            events
        )  # at once: while it is open here, nobody learns of the child's end should this process hang
        self._note_use()

    def _waiting_child(self, preload: Iterable[str]) -> int:
        late = [name for name in preload if name not in self._loaded_late]
        for name in late:
            load(name)
        if late:
            self._forker.discard()
            self._loaded_late.update(late)
        return self._forker.prepare()

    def _prepare(self) -> None:
        """Fork the child of the next job while there is nothing else to do."""
        if not self._problem:
            with contextlib.suppress(OSError):  # the job itself will say so
                self._forker.prepare()

    def _close_inherited(self) -> None:
        """Close in a child what is the server's: an end that stays open here would not tell of the other's end."""
        self._selector.close()
        if self._doorway is not None:
            self._doorway.listener.close()
        fates = (job.fate for job in self._running.values())
        connections = self._connections | {job.connection for job in self._running.values()}
        for end in (
            self._wakeup,
            self._wakeup_writer,
            *fates,
            *(connection.control for connection in connections),
        ):
            end.close()
        for descriptor in (
            number for connection in self._connections for number in connection.descriptors
        ):
            os.close(descriptor)

    def _cancel(self, job: _Running) -> None:
        """Stop the child whose orchestrator thread has hung up."""
        self._selector.unregister(job.fate)
        signal_group(job.pid, signal.SIGKILL)

    def _reap(self) -> None:
        while (pid := _ended_child()) is not None:
            signal_group(
                pid, signal.SIGKILL
            )  # what it started; before wait4, while the pid is still its own
            _, status, usage = os.wait4(pid, 0)
            job = self._running.pop(pid, None)
            if job is None:
                self._forker.forget(pid)
                continue
            code = os.waitstatus_to_exitcode(status)
            peak_mib = round(usage.ru_maxrss / 1024, 1)
            _tell(
                job.fate,
                {
                    "event": "exit",
                    "code": code,
                    "timed_out": job.timed_out,
                    "peak_rss_mib": peak_mib,
                },
            )
            with contextlib.suppress(KeyError):  # a cancelled job's is no longer watched
                self._selector.unregister(job.fate)
            job.fate.close()
            if job.connection not in self._connections:
                self._hang_up(job.connection)
            self._note_use()

    def _note_use(self) -> None:
        if self._doorway is not None:
            self._doorway.note_use()

    def _time_to_next_limit(self) -> float | None:
        limits = [
            limit
            for job in self._running.values()
            if (limit := job.kill_at or job.stop_at) is not None
        ]
        if self._doorway is not None and (self._retiring or not self._connections):
            soon = time.monotonic() + _RETRY_S
            limits.append(soon if self._retiring else max(self._leave_at, soon))
        return max(0.0, min(limits) - time.monotonic()) if limits else None

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        for job in self._running.values():
            if job.kill_at is not None and now >= job.kill_at:
                signal_group(job.pid, signal.SIGKILL)
                job.kill_at = now + _KILL_GRACE_S
            elif job.kill_at is None and job.stop_at is not None and now >= job.stop_at:
                job.timed_out, job.kill_at = True, now + _KILL_GRACE_S
                signal_group(job.pid, signal.SIGTERM)

    def _leave_if_idle(self) -> None:
        """End a server that nobody needs, unless somebody has come at the last moment."""
        if self._doorway is not None and (self._retiring or self._is_idle()):
            try:
                late = self._doorway.close()
            except OSError:  # somebody is about to come: looked at again soon
                return
            self._selector.unregister(self._doorway.listener)
            self._doorway = None
            for channel in late:
                self._add(channel)
        if self._doorway is None and not self._connections:
            self._stop()

    def _is_idle(self) -> bool:
        return not self._connections and time.monotonic() >= self._leave_at

    def _drain_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(4096)

    def _stop_if_orphan(self) -> None:
        if self._parent is not None and os.getppid() != self._parent:
            self._stop()

    def _stop(self) -> NoReturn:
        for pid in self._running:
            signal_group(pid, signal.SIGKILL)
        if self._doorway is not None:
            self._doorway.unlink()
        flush()
        os._exit(0)  # the teardown of torch takes a second


def _ended_child() -> int | None:
    """Return the pid of a child that has ended and is not yet reaped."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return ended.si_pid if ended is not None else None


def _tell(fate: socket.socket, message: Message) -> None:
    """Send a message that is smaller than any socket's buffer; an orchestrator that hung up misses it."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        fate.sendall(encode(message))
