"""SFTP with a check of host keys: fsspec's file system accepts any."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem


class HostKeyError(Exception):
    """A server with another host key than before."""


class SftpFileSystem(SFTPFileSystem):  # type: ignore[misc]  # fsspec has no type information
    """Files over SFTP, on servers with known or new host keys.

    Keys are those in ``~/.ssh/known_hosts`` and in the file ``known_hosts``, which receives the key
    of a new server.
    """

    cachable = False

    def __init__(self, host: str, known_hosts: Path | None, **options: Any) -> None:
        self._known_hosts = known_hosts
        super().__init__(host, **options)

    def _connect(self) -> None:
        """Open the connection, as fsspec expects. Raises: HostKeyError."""
        self.client = paramiko.SSHClient()
        self.client.load_system_host_keys()
        if self._known_hosts is not None:
            with suppress(FileNotFoundError):
                self.client.load_host_keys(str(self._known_hosts))
        self.client.set_missing_host_key_policy(_Remember(self._known_hosts))
        try:
            self.client.connect(self.host, **self.ssh_kwargs)
        except paramiko.BadHostKeyException as error:
            key, files = error.key, ["~/.ssh/known_hosts", *filter(None, [self._known_hosts])]
            raise HostKeyError(
                f"{self.host} identifies itself with the key {key.get_name()} {key.fingerprint},"
                " and another one is known; if the server was set up again, remove its line from"
                f" {' or '.join(map(str, files))}"
            ) from error
        self.ftp = self.client.open_sftp()


class _Remember(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # has no type information
    """Accept a new host key and append it to a file."""

    def __init__(self, known_hosts: Path | None) -> None:
        self._known_hosts = known_hosts

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        """Accept the key; an exception would refuse it."""
        del client
        if self._known_hosts is not None:
            line = f"{hostname} {key.get_name()} {key.get_base64()}\n"
            with suppress(OSError), self._known_hosts.open("a", encoding="ascii") as file:
                file.write(line)
