"""An SFTP server for one folder, in a thread of the test."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paramiko
from paramiko import SFTPAttributes, SFTPHandle, SFTPServer, SFTPServerInterface

USER, PASSWORD = "ci", "secret"


class Login(paramiko.ServerInterface):
    """Accepts one user with a password."""

    def check_auth_password(self, username: str, password: str) -> int:
        """Called by paramiko."""
        accepted = (username, password) == (USER, PASSWORD)
        return paramiko.AUTH_SUCCESSFUL if accepted else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        """Called by paramiko."""
        return paramiko.OPEN_SUCCEEDED


def answer(work: Callable[..., Any]) -> Callable[..., Any]:
    """Turn an OSError into the answer of the protocol."""

    def run(*arguments: Any) -> Any:
        try:
            found = work(*arguments)
            return paramiko.SFTP_OK if found is None else found
        except OSError as error:
            return SFTPServer.convert_errno(error.errno)

    return run


class Handle(SFTPHandle):
    """An open file."""

    def __init__(self, file: Any, server: SshServer) -> None:
        super().__init__()
        self.readfile = self.writefile = file
        self._server = server

    def read(self, offset: int, length: int) -> Any:
        """Return bytes of the file."""
        self._server.count_read()
        return super().read(offset, length)

    def stat(self) -> Any:
        """Return the attributes of the file."""
        return SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))


class Files(SFTPServerInterface):
    """The file system as the user of this process sees it."""

    def __init__(self, login: Login, server: SshServer) -> None:
        super().__init__(login)
        self._server = server

    def _require_writable(self, path: str) -> None:
        if self._server.read_only:
            raise PermissionError(errno.EACCES, "Permission denied", path)

    @answer
    def open(self, path: str, flags: int, attr: Any) -> Any:
        """Open a file."""
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
        if writes:
            self._require_writable(path)
        descriptor = os.open(path, flags, 0o644)
        return Handle(os.fdopen(descriptor, "wb" if writes else "rb"), self._server)

    @answer
    def stat(self, path: str) -> Any:
        """Return the attributes of a file."""
        return SFTPAttributes.from_stat(os.stat(path))  # noqa: PTH116 - as sent

    lstat = stat

    @answer
    def list_folder(self, path: str) -> Any:
        """Return the attributes of the files in a folder."""
        return [SFTPAttributes.from_stat(entry.stat(), entry.name) for entry in os.scandir(path)]

    @answer
    def remove(self, path: str) -> None:
        """Remove a file."""
        self._require_writable(path)
        Path(path).unlink()

    @answer
    def posix_rename(self, oldpath: str, newpath: str) -> None:
        """Rename a file, which replaces another one, or a folder."""
        self._require_writable(oldpath)
        Path(oldpath).replace(newpath)

    @answer
    def mkdir(self, path: str, attr: Any) -> None:
        """Make a folder."""
        self._require_writable(path)
        Path(path).mkdir()


class SshServer:
    """A server on localhost. It drops its connections after ``lose_after`` reads."""

    def __init__(self, port: int = 0) -> None:
        self.key = paramiko.ECDSAKey.generate()
        self.lose_after: int | None = None
        self.read_only = False
        self._transports: list[paramiko.Transport] = []
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, folder: Path) -> str:
        return f"sftp://{USER}:{PASSWORD}@127.0.0.1:{self.port}{folder}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:  # closed
                return
            transport = paramiko.Transport(client)
            self._transports.append(transport)
            transport.add_server_key(self.key)
            transport.set_subsystem_handler("sftp", SFTPServer, Files, self)
            with suppress(paramiko.SSHException, EOFError):  # the client refuses the key
                transport.start_server(server=Login())

    def count_read(self) -> None:
        if self.lose_after is not None:
            self.lose_after -= 1
            if self.lose_after < 0:
                self.lose()

    def lose(self) -> None:
        """Drop all connections."""
        for transport in self._transports:
            transport.sock.close()

    def close(self) -> None:
        with suppress(OSError):  # closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for transport in self._transports:
            transport.close()


@contextmanager
def ssh_server(port: int = 0) -> Iterator[SshServer]:
    """Run a server during the block."""
    server = SshServer(port)
    try:
        yield server
    finally:
        server.close()
