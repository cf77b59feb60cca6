"""The listening socket of a shared server, and its retirement."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from pathlib import Path

from buildsys.workers import registry


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
