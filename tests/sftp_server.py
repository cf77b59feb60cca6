"""An SFTP server in this process, which can lose connections and refuse writes."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

USER, PASSWORD = "ci", "secret"


class SshServer:
    """A server on localhost. It drops its connections after ``lose_after`` reads."""

    def __init__(self, port: int = 0) -> None:
        self.lose_after: int | None = None
        self.read_only = False
        self._connections: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncssh = pytest.importorskip("asyncssh", reason="pip install sshfs")
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self._acceptor = self._run(self._listen(asyncssh, port))
        self.port: int = self._acceptor.get_port()

    def url(self, folder: Path) -> str:
        return f"sftp://{USER}:{PASSWORD}@127.0.0.1:{self.port}{folder}"

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self, asyncssh: Any, port: int) -> Any:
        outer = self
        writing = asyncssh.FXF_WRITE | asyncssh.FXF_CREAT

        class Login(asyncssh.SSHServer):  # type: ignore[misc]
            def connection_made(self, conn: Any) -> None:
                outer._connections.append(conn)

            def password_auth_supported(self) -> bool:
                return True

            def validate_password(self, username: str, password: str) -> bool:
                return (username, password) == (USER, PASSWORD)

        class Files(asyncssh.SFTPServer):  # type: ignore[misc]
            def _require_writable(self, path: bytes) -> None:
                if outer.read_only:
                    raise asyncssh.SFTPPermissionDenied(f"{path.decode()} is read-only")

            def open(self, path: bytes, pflags: int, attrs: Any) -> Any:
                if pflags & writing:
                    self._require_writable(path)
                return super().open(path, pflags, attrs)

            def mkdir(self, path: bytes, attrs: Any) -> Any:
                self._require_writable(path)
                return super().mkdir(path, attrs)

            def read(self, file_obj: Any, offset: int, size: int) -> Any:
                outer.count_read()
                return super().read(file_obj, offset, size)

        return await asyncssh.create_server(
            Login, "127.0.0.1", port, server_host_keys=[self.key], sftp_factory=Files
        )

    def count_read(self) -> None:
        if self.lose_after is not None:
            self.lose_after -= 1
            if self.lose_after < 0:
                for connection in self._connections:
                    connection.abort()

    def close(self) -> None:
        async def close() -> None:
            self._acceptor.close()
            for connection in self._connections:
                connection.abort()
            await self._acceptor.wait_closed()

        if self._loop.is_running():
            self._run(close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@contextmanager
def ssh_server(port: int = 0) -> Iterator[SshServer]:
    """Run a server during the block."""
    server = SshServer(port)
    try:
        yield server
    finally:
        server.close()
