"""The orchestrator's side of one worker server: hand it a job, hear how that went, end it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from buildsys.errors import WorkerDied
from buildsys.system.processes import Process, describe_exit
from buildsys.workers.client.job_channels import Conversation, OnEvent
from buildsys.workers.job import Job
from buildsys.workers.protocol import Message, encode, error_from_json, job_to_json
from buildsys.workers.server_kinds import late_preload

_START_LIMIT_S = (
    600.0  # a server that has not taken a job by then never will (say, a hanging network disk)
)
_READY_LIMIT_S = 60.0  # the same for one that had loaded everything before
_CLOSE_LIMIT_S = 1.0


class NotTakenError(WorkerDied):
    """The server ended, or hangs, and had not begun the job: another server can do it."""


class ServerHandle:
    """A connection to a running server. Threads may share it: each job has its own channels."""

    def __init__(
        self, control: socket.socket, *, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.log = log
        self._start_limit_s = _START_LIMIT_S
        self._control = control
        self._environment = environment  # what of it differs from job to job
        self._sending = threading.Lock()
        self._given_up = False  # its end takes the system a moment
        self._conversations: set[Conversation] = set()

    @property
    def reused(self) -> bool:
        """Whether an earlier run had started the server."""
        return False

    @property
    def alive(self) -> bool:
        """Whether the server can still take a job."""
        if self._given_up:
            return False
        try:
            return self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:  # it never says anything here
            return True
        except OSError:
            return False

    def run(self, job: Job, *, log: Path, timeout_s: float | None, on_event: OnEvent) -> Message:
        """Run ``job`` in a child of the server and return its answer.

        Raises: StageError: whatever the stage raised. WorkerDied: there is no answer and will be none.
        """
        request: Message = {"job": job_to_json(job), "log": str(log), "timeout_s": timeout_s}
        request |= {"preload": late_preload(job), "server_log": job.display_path(self.log)}
        request |= {"environment": dict(self._environment)}
        conversation = self._send(encode(request))
        if conversation is None:
            raise self._server_died(job, log, None)
        try:
            answer = conversation.listen(self._start_limit_s, timeout_s, on_event)
        finally:
            self._conversations.discard(conversation)
            conversation.close()
        if answer is None:
            raise self._server_died(job, log, conversation.pid)
        if answer["event"] == "exit":
            sentence = f"the worker of {job.target} {describe_exit(answer['code'])}"
            if answer["timed_out"]:
                sentence = (
                    f"{job.target} took longer than its limit of {timeout_s:g} s and was stopped"
                )
            raise WorkerDied(sentence, f"full log: {job.display_path(log)}")
        if answer["event"] in ("error", "refused"):
            raise error_from_json(answer["error"])
        return answer

    def hang_up(self) -> None:
        """Tell the server to end the children that work for this process, without waiting for it."""
        raise NotImplementedError

    def close(self) -> None:
        """End what the server does for this process; jobs still running in other threads fail."""
        raise NotImplementedError

    def _end_of_server(self) -> str:
        """Return how the server ended; one that only stopped responding is ended now."""
        raise NotImplementedError

    def _send(self, request: bytes) -> Conversation | None:
        """Hand over a job; None when another thread has closed this handle meanwhile."""
        with self._sending:
            if self._control.fileno() < 0:
                return None
            conversation = Conversation(self._control)
            self._conversations.add(conversation)
            with contextlib.suppress(
                BrokenPipeError, ConnectionResetError
            ):  # listen() sees that the server is gone
                sent = socket.send_fds(self._control, [request], conversation.remote_descriptors)
                self._control.sendall(request[sent:])
        conversation.close_remote()
        return conversation

    def _server_died(self, job: Job, log: Path, pid: int | None) -> WorkerDied:
        self._given_up = True
        if pid is not None:
            _kill_group(pid)  # what the child itself had started
        how = self._end_of_server()
        if pid is not None:
            return WorkerDied(
                f"the worker server that ran {job.target} {how}",
                f"full log: {job.display_path(log)}",
            )
        hint = f"full log: {job.display_path(self.log)}"
        return NotTakenError(
            f"the worker server for {job.target} {how}, before it could take the job", hint
        )


class OwnServer(ServerHandle):
    """A server that this process has started for itself alone, and that ends with it."""

    def __init__(
        self,
        control: socket.socket,
        process: subprocess.Popen[bytes],
        *,
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(control, log=log, environment=environment)
        self._process = process

    def hang_up(self) -> None:
        """Tell the server to end its children and itself, without waiting for it."""
        with contextlib.suppress(OSError):  # the server may have ended by itself
            self._control.shutdown(socket.SHUT_RDWR)
        self._process.terminate()

    def close(self) -> None:
        """End the server and its children now."""
        self.hang_up()
        try:
            self._process.wait(_CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:  # in the middle of loading a library
            self._process.kill()
            self._process.wait()
        with self._sending:
            self._control.close()

    def _end_of_server(self) -> str:
        return describe_exit(_wait_or_kill(self._process))


class SharedServer(ServerHandle):
    """A server that other processes may use as well, at the same time and later."""

    def __init__(
        self,
        control: socket.socket,
        server: Process,
        *,
        log: Path,
        environment: Mapping[str, str],
        started: subprocess.Popen[bytes] | None,
        ready: bool = False,
    ) -> None:
        super().__init__(control, log=log, environment=environment)
        self._server = server
        self._started = started  # by this process
        if ready:
            self._start_limit_s = _READY_LIMIT_S

    @property
    def reused(self) -> bool:
        """Whether an earlier run had started the server."""
        return self._started is None

    def hang_up(self) -> None:
        """Tell the server to end the children that work for this process, without waiting for it."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Leave the server to others, once it has ended what it does for this process."""
        self.hang_up()
        working = [
            conversation.pid
            for conversation in list(self._conversations)
            if conversation.pid is not None
        ]
        if working and not _is_readable(
            self._control, _CLOSE_LIMIT_S
        ):  # it hangs up once it has killed them
            for pid in working:
                _kill_group(pid)
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # wakes the threads that listen
        with self._sending:
            self._control.close()
        if self._started is not None and self._started.poll() is None:
            self._started.returncode = 0  # it lives on, which Popen would complain about

    def _end_of_server(self) -> str:
        if self._started is not None:
            return describe_exit(_wait_or_kill(self._started))
        if self._server.wait(_CLOSE_LIMIT_S):
            return "ended unexpectedly"
        self._server.send_signal(signal.SIGKILL)
        self._server.wait(_CLOSE_LIMIT_S)  # until then the next to connect would meet it again
        return describe_exit(None)


def _wait_or_kill(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_CLOSE_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(
            subprocess.TimeoutExpired
        ):  # until it is gone the next to connect would meet it again
            process.wait(_CLOSE_LIMIT_S)
        return None


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _is_readable(channel: socket.socket, limit_s: float) -> bool:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))
