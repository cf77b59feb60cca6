"""The orchestrator's side of one job: the channels to the child and to the server that forked it."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable

from buildsys.workers.protocol import LineBuffer, Message

# the server itself stops a job at its limit, and tells when a child has ended; beyond this the server is what hangs
_LIMIT_SLACK_S = 20.0

OnEvent = Callable[[Message], None]


class Conversation:
    """Events come from the child, fate from the server, and the control channel tells when the server is gone."""

    def __init__(self, control: socket.socket) -> None:
        self.pid: int | None = None
        self._events, self._remote_events = os.pipe()
        os.set_blocking(self._events, False)
        self._fate, self._remote_fate = socket.socketpair()
        self._server = (
            control.dup()
        )  # its own, so that closing the pool cannot pull it away; readable = ended
        self._event_lines, self._fate_lines = LineBuffer(), LineBuffer()
        self._hung_up = False  # the child has, without an answer

    @property
    def remote_descriptors(self) -> list[int]:
        """The ends that travel to the server with the job."""
        return [self._remote_events, self._remote_fate.fileno()]

    def close_remote(self) -> None:
        """Forget the ends that have travelled."""
        os.close(self._remote_events)
        self._remote_fate.close()

    def close(self) -> None:
        """Hang up: the server then stops a child that is still at work."""
        os.close(self._events)
        self._fate.close()
        self._server.close()

    def listen(
        self, start_limit_s: float, timeout_s: float | None, on_event: OnEvent
    ) -> Message | None:
        """Return the last message: an answer, ``refused`` or ``exit``; None when the server is gone or hangs."""
        deadline: float | None = time.monotonic() + start_limit_s
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
                        deadline = (
                            None
                            if timeout_s is None
                            else time.monotonic() + timeout_s + _LIMIT_SLACK_S
                        )
                        on_event(message)
                ending = next(
                    (message for message in fate or () if message["event"] != "started"), None
                )
                answer = self._read_events(on_event, selector)
                if answer is not None or ending is not None or gone:
                    return answer or ending
                if self._hung_up and (
                    deadline is None or deadline > time.monotonic() + _LIMIT_SLACK_S
                ):
                    deadline = time.monotonic() + _LIMIT_SLACK_S

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
                self._hung_up = True
                return None
            for message in self._event_lines.feed(piece):
                if message["event"] != "progress":
                    return message
                on_event(message)
