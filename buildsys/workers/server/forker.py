"""Forks the children of a worker server: one ahead of time, because a fork of 700 MB takes 20 ms."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from buildsys.system.processes import die_with_parent
from buildsys.workers.protocol import LineBuffer, Message, encode, job_from_json
from buildsys.workers.server.child import run_child

SERVER_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)


@dataclass(frozen=True)
class _Spare:
    """A child that waits for its job."""

    pid: int
    channel: socket.socket


class Forker:
    """Starts children of this process; each runs one job and ends."""

    def __init__(self, close_inherited: Callable[[], None]) -> None:
        self._close_inherited = (
            close_inherited  # called in a child: closes what is the server's alone
        )
        self._pid = os.getpid()
        self._spare: _Spare | None = None

    @property
    def is_prepared(self) -> bool:
        """Whether a child waits for a job."""
        return self._spare is not None

    def prepare(self) -> int:
        """Have a child wait for the next job; return its pid. Raises: OSError: no memory or no process is left."""
        if self._spare is not None and _has_ended(
            self._spare.pid
        ):  # somebody has killed it while it waited
            self._drop()
        if self._spare is None:
            self._spare = self._fork()
        return self._spare.pid

    def hand_over(self, message: Message, events: int) -> None:
        """Let the child that waits do a job and answer on ``events``."""
        assert self._spare is not None
        request = encode(message)
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # how it ended is told when it is reaped
            sent = socket.send_fds(self._spare.channel, [request], [events])
            self._spare.channel.sendall(request[sent:])
        self._drop()

    def discard(self) -> None:
        """End a child that waits: it lacks what this process has loaded since."""
        if self._spare is not None:
            signal_group(self._spare.pid, signal.SIGKILL)
            self._drop()

    def forget(self, pid: int) -> None:
        """Take note that a process has ended, which may be the child that waited."""
        if self._spare is not None and self._spare.pid == pid:
            self._drop()

    def _drop(self) -> None:
        if self._spare is not None:
            self._spare.channel.close()
            self._spare = None

    def _fork(self) -> _Spare:
        flush()
        gc.freeze()  # a collection in the child leaves the shared pages alone
        ours, childs = socket.socketpair()
        signal.pthread_sigmask(
            signal.SIG_BLOCK, SERVER_SIGNALS
        )  # a child must not run the server's handlers
        try:
            pid = os.fork()
            if pid == 0:
                ours.close()
                self._become_child(childs)
            return _Spare(pid, ours)
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SERVER_SIGNALS)
            childs.close()

    def _become_child(self, channel: socket.socket) -> NoReturn:
        try:
            os.setsid()  # its own group: a time-out reaches its processes, Ctrl-C does not
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, *SERVER_SIGNALS):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SERVER_SIGNALS)
            die_with_parent(self._pid, signal.SIGKILL)
            self._close_inherited()
            gc.enable()
            message, events = _receive(channel)
            os.environ.update(message["environment"])
            run_child(job_from_json(message["job"]), Path(message["log"]), events)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)  # never back into the server's loop; run_child itself does not return


def _receive(channel: socket.socket) -> tuple[Message, int]:
    """Wait for the job of this child; end with the server that has none."""
    buffer, received = LineBuffer(), list[int]()
    with channel:
        while True:
            piece, descriptors, _, _ = socket.recv_fds(channel, 1 << 16, 1)
            if not piece:
                os._exit(0)
            received += descriptors
            for message in buffer.feed(piece):
                os.set_inheritable(received[0], False)
                return message, received[0]


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a child and to what it has started."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # just forked: not yet the leader of its group
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def flush() -> None:
    """Write out what Python and C have buffered, which a child would write again."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
