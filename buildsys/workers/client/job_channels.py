"""The orchestrator's channels for one job, to child and server."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable

from buildsys.workers.protocol import LineBuffer, Message

# The server enforces a job's limit and reports a child's end. After this long it is the server
# that hangs.
_LIMIT_SLACK_S = 20.0

OnEvent = Callable[[Message], None]


class JobChannels:
    """The events pipe and status socket of one job, with the control socket."""

    def __init__(self, control: socket.socket) -> None:
        self.pid: int | None = None  # of the child, once it started
        self._events, self._remote_events = os.pipe()
        os.set_blocking(self._events, False)
        self._status, self._remote_status = socket.socketpair()
        # a copy that closing the pool cannot take away; readable means that the server is gone
        self._control = control.dup()
        self._event_lines, self._status_lines = LineBuffer(), LineBuffer()
        self._events_closed = False

    @property
    def remote_descriptors(self) -> list[int]:
        """Return the descriptors to send with the job."""
        return [self._remote_events, self._remote_status.fileno()]

    def close_remote(self) -> None:
        """Close this process's copies of the sent descriptors."""
        os.close(self._remote_events)
        self._remote_status.close()

    def close(self) -> None:
        """Close the channels. The server then kills a running child."""
        os.close(self._events)
        self._status.close()
        self._control.close()

    def listen(
        self, start_limit_s: float, timeout_s: float | None, on_event: OnEvent
    ) -> Message | None:
        """Pass on events; return the result, ``error``, ``refused`` or ``exit`` message.

        None means that the server is gone or hangs.
        """
        deadline: float | None = time.monotonic() + start_limit_s
        with selectors.DefaultSelector() as selector:
            for channel in (self._events, self._status, self._control):
                selector.register(channel, selectors.EVENT_READ)
            while True:
                wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = {key.fileobj for key, _ in selector.select(wait_s)}
                status = self._read_status() if self._status in ready else []
                started = self.pid is not None
                answer = self._read_events(on_event, selector)
                if answer is not None or status:
                    return answer or next(iter(status or ()), None)
                if not ready or self._control in ready or status is None:
                    return None
                if not started and self.pid is not None:
                    limit_s = None if timeout_s is None else timeout_s + _LIMIT_SLACK_S
                    deadline = None if limit_s is None else time.monotonic() + limit_s
                if self._events_closed:  # the child has ended; the server reports that next
                    soon = time.monotonic() + _LIMIT_SLACK_S
                    deadline = soon if deadline is None else min(deadline, soon)

    def _read_status(self) -> list[Message] | None:
        try:
            piece = self._status.recv(1 << 16)
        except ConnectionResetError:  # the server ended before it read everything
            return None
        return self._status_lines.feed(piece) if piece else None

    def _read_events(self, on_event: OnEvent, selector: selectors.BaseSelector) -> Message | None:
        """Pass on the received events. Return the child's answer if it arrived."""
        while True:
            try:
                piece = os.read(self._events, 1 << 16)
            except BlockingIOError:
                return None
            if not piece:
                with contextlib.suppress(KeyError):
                    selector.unregister(self._events)
                self._events_closed = True
                return None
            for message in self._event_lines.feed(piece):
                if message["event"] not in ("started", "progress"):
                    return message
                self.pid = message.get("pid", self.pid)
                on_event(message)
