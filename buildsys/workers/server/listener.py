"""How a server that outlives a run is reached: the socket that it listens on, and how it goes out of service."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from pathlib import Path

from buildsys.workers import registry


class Doorway:
    """The listening socket of a server, with the file and the record that it is found by."""

    def __init__(self, listener: socket.socket, path: Path) -> None:
        listener.setblocking(False)
        self.listener = listener
        self._path = path
        self._inode = self._found_inode()

    def accept(self) -> list[socket.socket]:
        """Return the connections that have arrived, of this user alone."""
        arrived = []
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    channel, _ = self.listener.accept()
                except ConnectionAbortedError:
                    continue
                channel.setblocking(True)
                if registry.peer_uid(channel) == os.geteuid():
                    arrived.append(channel)
                else:
                    channel.close()
        return arrived

    def note_ready(self) -> None:
        """Tell those to come that everything is loaded."""
        with (
            contextlib.suppress(OSError),
            registry.locked(self._path.parent),
        ):  # only shortens how long they wait
            record = registry.read_record(self._path)
            if record is not None and record.pid == os.getpid():
                registry.write_record(self._path, dataclasses.replace(record, ready=True))

    def note_use(self) -> None:
        """Let the record's time say when the server was last at work."""
        with contextlib.suppress(OSError):  # only shown
            os.utime(registry.record_path(self._path))

    def close(self) -> list[socket.socket]:
        """Go out of service for good; return the connections that had arrived before.

        Raises: BlockingIOError: somebody is just about to connect or to start a server; to be tried again.
        """
        with contextlib.ExitStack() as stack:
            if self._path.parent.is_dir():
                stack.enter_context(registry.locked(self._path.parent, 0.0))
            self.unlink()
            arrived = self.accept()
            self.listener.close()
        return arrived

    def unlink(self) -> None:
        """Remove what this server is found by, unless that is another's by now."""
        with contextlib.suppress(OSError):
            if self._found_inode() == self._inode:
                registry.remove(self._path)

    def _found_inode(self) -> int:
        try:
            return self._path.stat().st_ino
        except OSError:
            return 0
