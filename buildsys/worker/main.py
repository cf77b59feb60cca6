"""The worker server: loads libraries once, then forks a child for each job.

Single-threaded on purpose: a fork copies one thread only. Standard library only until it preloads.
Started by the pool as ``python -m buildsys.worker.main JSON``; ends when the orchestrator does.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from buildsys.errors import StageError
from buildsys.worker.child import run_child
from buildsys.worker.lifeline import die_with_parent
from buildsys.worker.protocol import LineBuffer, Message, encode, error_to_json, job_from_json

_KILL_GRACE_S = 2.0  # between SIGTERM and SIGKILL
_OUR_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)


@dataclass
class _Running:
    """A child at work."""

    pid: int
    fate: socket.socket
    stop_at: float | None  # monotonic; then SIGTERM
    kill_at: float | None = None  # monotonic; then SIGKILL
    timed_out: bool = False


class Server:
    """Forks a child per job and tells the orchestrator how each one ended."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control = control
        self._parent = parent
        self._pid = os.getpid()
        self._problem = ""
        self._running: dict[int, _Running] = {}
        self._buffer = LineBuffer()
        self._descriptors: list[int] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._read_control)
        self._wakeup, self._wakeup_writer = socket.socketpair()
        self._catch_signals()

    def _catch_signals(self) -> None:
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._drain_wakeup)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the orchestrator's to handle
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wakeup socket is what ends the wait
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        signal.signal(signal.SIGHUP, lambda *_: self._stop())
        signal.signal(signal.SIGUSR1, lambda *_: self._stop_if_orphan())
        # sent when the *thread* that started this server ends, which need not be the end of its process
        die_with_parent(self._parent, signal.SIGUSR1)

    def preload(self, modules: Iterable[str], without: Iterable[str] = ()) -> None:
        """Load ``modules`` for all later children; a first one that fails makes every job fail with its message."""
        gc.disable()  # stays off in the server: a collection would write to pages that the children share
        with _hidden(without):
            for position, name in enumerate(modules):
                problem = _load(name)
                if problem and position == 0:
                    self._problem = problem
                    return
        _log(f"ready, {_count_threads()} threads")

    def serve(self) -> NoReturn:
        """Take jobs until the orchestrator goes away."""
        while True:
            for key, _ in self._selector.select(self._time_to_next_limit()):
                key.data(key.fileobj)
            self._reap()
            self._enforce_limits()

    def _read_control(self, _: object) -> None:
        piece, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 64)
        if not piece:
            self._stop()
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._descriptors += descriptors
        for message in self._buffer.feed(piece):
            events, fate = self._descriptors[:2]
            del self._descriptors[:2]
            self._start(message, events, socket.socket(fileno=fate))

    def _start(self, message: Message, events: int, fate: socket.socket) -> None:
        problem, pid = self._problem, 0
        for name in message["preload"] if not problem else ():
            _load(name)
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
        self._running[pid] = _Running(pid, fate, None if timeout_s is None else time.monotonic() + timeout_s)
        self._selector.register(fate, selectors.EVENT_READ, self._cancel)
        _tell(fate, {"event": "started", "pid": pid})

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
            self._selector.close()
            others = (job.fate for job in self._running.values())
            for end in (self._control, self._wakeup, self._wakeup_writer, fate, *others):
                end.close()
            gc.enable()
            run_child(job_from_json(message["job"]), Path(message["log"]), events)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)  # never back into the server's loop; run_child itself does not return

    def _cancel(self, fate: socket.socket) -> None:
        """Stop the child whose orchestrator thread has hung up."""
        self._selector.unregister(fate)
        for job in self._running.values():
            if job.fate is fate:
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

    def _time_to_next_limit(self) -> float | None:
        limits = [limit for job in self._running.values() if (limit := job.kill_at or job.stop_at) is not None]
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

    def _drain_wakeup(self, _: object) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(4096)

    def _stop_if_orphan(self) -> None:
        if os.getppid() != self._parent:
            self._stop()

    def _stop(self) -> NoReturn:
        for pid in self._running:
            _signal_group(pid, signal.SIGKILL)
        _flush()
        os._exit(0)  # the teardown of torch takes a second


@contextlib.contextmanager
def _hidden(names: Iterable[str]) -> Iterator[None]:
    """Make importing ``names`` fail for a while, as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:  # a stage that asks for it later gets it
            del modules[name]


def _load(name: str) -> str:
    """Import a module; return what went wrong. A broken library may raise anything at all."""
    if name in sys.modules:
        return ""
    _log(f"importing {name}")  # the last such line tells which library crashed
    try:
        importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            _log(f"{name} is not installed")
        else:
            traceback.print_exc()
        return f"cannot import {name}: {type(error).__name__}: {error}"
    return ""


def _count_threads() -> str:
    tasks = Path("/proc/self/task")
    return str(sum(1 for _ in tasks.iterdir())) if tasks.exists() else "an unknown number of"


def _log(line: str) -> None:
    """Write to the server's log, which its output is."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


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


def main() -> NoReturn:
    """Serve the orchestrator that started this process."""
    faulthandler.enable()
    # OpenBLAS, the one library here that starts threads when loaded, handles forks itself
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    start = json.loads(sys.argv[1])
    sys.path[0:1] = []  # the state folder that the server was started in
    server = Server(socket.socket(fileno=start["control"]), start["parent"])
    server.preload(start["preload"], start["without"])
    server.serve()


if __name__ == "__main__":
    main()
