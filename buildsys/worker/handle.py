"""The orchestrator's side of one worker server: start it, hand it a job, hear how that went."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from buildsys.errors import WorkerDied
from buildsys.worker.death import how_it_ended, shown
from buildsys.worker.job import Job
from buildsys.worker.profiles import Profile, late_preload
from buildsys.worker.protocol import LineBuffer, Message, encode, error_from_json, job_to_json

_START_LIMIT_S = 600.0  # a server that has not taken a job by then never will (say, a hanging network disk)
_LIMIT_SLACK_S = 20.0  # the server itself stops a job at its limit; beyond this the server is what hangs
_CLOSE_LIMIT_S = 1.0

OnEvent = Callable[[Message], None]


class ServerHandle:
    """One running server. Threads may share it: each job has its own channels."""

    def __init__(self, profile: Profile, *, python: str, environment: Mapping[str, str], folder: Path) -> None:
        self.log = folder / f"{profile.name}.log"
        self._sending = threading.Lock()
        self._given_up = False  # its end takes the system a moment
        self._control, remote = socket.socketpair()
        start: Message = {"control": remote.fileno(), "parent": os.getpid()}
        start |= {"preload": profile.preload, "without": profile.without}
        command = [python, "-m", "buildsys.worker.main", json.dumps(start)]
        try:
            self._process = _spawn(command, environment, self.log, remote.fileno())
        except OSError:
            self._control.close()
            raise
        finally:
            remote.close()

    @property
    def alive(self) -> bool:
        """Whether the server can still take a job."""
        return not self._given_up and self._process.poll() is None

    def run(self, job: Job, *, log: Path, timeout_s: float | None, on_event: OnEvent) -> Message:
        """Run ``job`` in a child of the server and return its answer.

        Raises: StageError: whatever the stage raised. WorkerDied: there is no answer and will be none.
        """
        request: Message = {"job": job_to_json(job), "log": str(log), "timeout_s": timeout_s}
        request |= {"preload": late_preload(job), "server_log": shown(self.log, job.project)}
        conversation = self._send(encode(request))
        if conversation is None:
            raise self._server_died(job, log, None)
        try:
            answer = conversation.listen(timeout_s, on_event)
        finally:
            conversation.close()
        if answer is None:
            raise self._server_died(job, log, conversation.pid)
        if answer["event"] == "exit":
            sentence = f"the worker of {job.target} {how_it_ended(answer['code'])}"
            if answer["timed_out"]:
                sentence = f"{job.target} took longer than its limit of {timeout_s:g} s and was stopped"
            raise WorkerDied(sentence, f"full log: {shown(log, job.project)}")
        if answer["event"] in ("error", "refused"):
            raise error_from_json(answer["error"])
        return answer

    def hang_up(self) -> None:
        """Tell the server to end its children and itself, without waiting for it."""
        with contextlib.suppress(OSError):  # the server may have ended by itself
            self._control.shutdown(socket.SHUT_RDWR)
        self._process.terminate()

    def close(self) -> None:
        """End the server and its children now; jobs still running in other threads fail."""
        self.hang_up()
        try:
            self._process.wait(_CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:  # in the middle of loading a library
            self._process.kill()
            self._process.wait()
        with self._sending:
            self._control.close()

    def _send(self, request: bytes) -> _Conversation | None:
        """Hand over a job; None when another thread has closed this handle meanwhile."""
        with self._sending:
            if self._control.fileno() < 0:
                return None
            conversation = _Conversation(self._control)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # listen() sees that the server is gone
                sent = socket.send_fds(self._control, [request], conversation.remote_descriptors)
                self._control.sendall(request[sent:])
        conversation.close_remote()
        return conversation

    def _server_died(self, job: Job, log: Path, pid: int | None) -> WorkerDied:
        self._given_up = True
        if pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # what the child itself had started
                os.killpg(pid, signal.SIGKILL)
        how = how_it_ended(self._exit_code())
        if pid is not None:
            return WorkerDied(f"the worker server that ran {job.target} {how}", f"full log: {shown(log, job.project)}")
        hint = f"full log: {shown(self.log, job.project)}"
        return WorkerDied(f"the worker server for {job.target} {how}, before it could take the job", hint)

    def _exit_code(self) -> int | None:
        """Return how the server ended; one that only stopped answering is ended now."""
        try:
            return self._process.wait(_CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return None


def _spawn(command: list[str], environment: Mapping[str, str], log: Path, descriptor: int) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,  # `-m` looks there first, and a project may hold an onnx.py of its own
            env=dict(environment),
            pass_fds=[descriptor],
        )
    finally:
        os.close(output)


class _Conversation:
    """The channels of one job: events from the child, fate from the server, and the server's own end."""

    def __init__(self, control: socket.socket) -> None:
        self.pid: int | None = None
        self._events, self._remote_events = os.pipe()
        os.set_blocking(self._events, False)
        self._fate, self._remote_fate = socket.socketpair()
        self._server = control.dup()  # its own, so that closing the pool cannot pull it away; readable = ended
        self._event_lines, self._fate_lines = LineBuffer(), LineBuffer()

    @property
    def remote_descriptors(self) -> list[int]:
        return [self._remote_events, self._remote_fate.fileno()]

    def close_remote(self) -> None:
        os.close(self._remote_events)
        self._remote_fate.close()

    def close(self) -> None:
        """Hang up: the server then stops a child that is still at work."""
        os.close(self._events)
        self._fate.close()
        self._server.close()

    def listen(self, timeout_s: float | None, on_event: OnEvent) -> Message | None:
        """Return the last message: an answer, ``refused`` or ``exit``; None when the server is gone or hangs."""
        deadline: float | None = time.monotonic() + _START_LIMIT_S
        with selectors.DefaultSelector() as selector:
            for channel in (self._events, self._fate, self._server):
                selector.register(channel, selectors.EVENT_READ)
            while True:
                wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = {key.fileobj for key, _ in selector.select(wait_s)}
                fate = self._read_fate() if self._fate in ready else []
                gone = not ready or self._server in ready or fate is None
                for message in fate or ():
                    if message["event"] == "started":
                        self.pid = message["pid"]
                        deadline = None if timeout_s is None else time.monotonic() + timeout_s + _LIMIT_SLACK_S
                        on_event(message)
                ending = next((message for message in fate or () if message["event"] != "started"), None)
                answer = self._read_events(on_event, selector)
                if answer is not None or ending is not None or gone:
                    return answer or ending

    def _read_fate(self) -> list[Message] | None:
        try:
            piece = self._fate.recv(1 << 16)
        except ConnectionResetError:  # the server ended with something of ours unread
            return None
        return self._fate_lines.feed(piece) if piece else None

    def _read_events(self, on_event: OnEvent, selector: selectors.BaseSelector) -> Message | None:
        """Pass on what the child has said so far; return its answer when that is among it."""
        while True:
            try:
                piece = os.read(self._events, 1 << 16)
            except BlockingIOError:
                return None
            if not piece:  # the child has closed it: its fate comes next
                with contextlib.suppress(KeyError):
                    selector.unregister(self._events)
                return None
            for message in self._event_lines.feed(piece):
                if message["event"] != "progress":
                    return message
                on_event(message)
