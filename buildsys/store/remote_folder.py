"""A folder reached through fsspec: local, SFTP or object storage."""

import errno
import logging
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.errors import BuildsysError, StageError
from buildsys.system.files import open_regular
from buildsys.system.printable import mask_text

_LOCAL, _SSH = ("file", "local"), ("sftp", "ssh")
# without folders: making one would create the bucket of a mistyped URL
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss")


class HostKeyError(Exception):
    """A server with another host key than before."""


class RemoteFolder(NamedTuple):
    """A connection to a folder; paths are relative to it."""

    system: Any  # an fsspec file system, none of which has type information
    root: str
    is_local: bool  # on this machine
    renames: bool  # files are shown while they are written, and renamed atomically
    has_folders: bool

    def open_to_read(self, path: str) -> Any:
        """Open a file.

        Raises: FileNotFoundError: it does not exist, or is a folder, a FIFO or a device.
        """
        target = f"{self.root}/{path}"
        if self.is_local:
            try:
                return open_regular(target)
            except (ValueError, IsADirectoryError) as error:
                raise FileNotFoundError(errno.ENOENT, str(error), target) from None
        return self.system.open(target, "rb")

    def size(self, path: str) -> int | None:
        """Look up a file's size, None if its place does not know it.

        Raises: FileNotFoundError: it does not exist.
        """
        size = self.system.info(f"{self.root}/{path}").get("size")
        return None if size is None else int(size)

    def has(self, path: str, size: int) -> bool:
        """Look for a file of this size."""
        try:
            return self.size(path) == size
        except FileNotFoundError:
            return False

    def names(self, path: str, kind: str) -> list[str]:
        """List the visible entries of a folder; ``kind`` is "file" or "directory"."""
        try:  # a pattern would read brackets in a URL
            entries = self.system.ls(f"{self.root}/{path}".rstrip("/"), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        paths = (str(entry["name"]) for entry in entries if entry.get("type") == kind)
        names = (path.rstrip("/").rpartition("/")[2] for path in paths)
        return sorted(name for name in names if not name.startswith("."))

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file atomically."""
        target = f"{self.root}/{path}"
        self._make_parent(target)
        if not self.renames:
            self._write(target, chunks)
            return
        part = f"{target}.{uuid.uuid4().hex}.part"
        try:
            self._write(part, chunks)
            if self.is_local:
                Path(part).replace(target)
            else:
                self.system.mv(part, target)  # posix-rename of SFTP, which replaces
        except BaseException:
            with suppress(Exception):  # the first problem counts
                self.system.rm(part)
            raise

    def create(self, path: str, content: bytes) -> None:
        """Write a new file. Raises: FileExistsError."""
        target = f"{self.root}/{path}"
        self._make_parent(target)
        if self.is_local and _link_new(target, content):
            return
        try:
            with self.system.open(target, "xb") as writer:
                writer.write(content)
        except Exception as error:
            if self.is_local and not isinstance(error, FileExistsError):  # such as a full disk
                with suppress(OSError):
                    Path(target).unlink()
                raise
            if self.system.exists(target):  # SFTP calls it a failure, without a reason
                raise FileExistsError(target) from error
            if not isinstance(error, NotImplementedError | ValueError):
                raise
            self._write(target, [content])  # a protocol without exclusive creation

    def _make_parent(self, target: str) -> None:
        if self.has_folders:
            self.system.makedirs(target.rpartition("/")[0], exist_ok=True)

    def _write(self, target: str, chunks: Iterable[bytes]) -> None:
        with self.system.open(target, "wb") as writer:
            for chunk in chunks:
                writer.write(chunk)

    def remove(self, path: str) -> None:
        """Remove a file or folder, if it exists."""
        with suppress(FileNotFoundError):
            self.system.rm(f"{self.root}/{path}", recursive=True)


def _link_new(target: str, content: bytes) -> bool:
    """Write a new local file at once; return False if its file system has no links.

    Raises: OSError.
    """
    part = Path(f"{target}.{uuid.uuid4().hex}.part")
    try:
        part.write_bytes(content)
        try:
            Path(target).hardlink_to(part)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            return False
        return True
    finally:
        part.unlink(missing_ok=True)


def connect(
    url: str, *, known_hosts: Path | None = None, timeout_s: float | None = None
) -> RemoteFolder:
    """Connect to the folder at a URL.

    ``known_hosts`` is a file with the host keys of SFTP servers besides the user's own.
    Raises: ImportError: a package is missing. Exception: each protocol has its own.
    """
    try:
        import fsspec  # slow to import: only a run that builds needs it
    except ImportError as error:
        raise ImportError("fsspec is not installed") from error
    if url.partition("://")[0] in _SSH:
        place = fsspec.utils.infer_storage_options(url)
        del place["protocol"]
        root = place.pop("path")
        system = _connect_sftp(**place, known_hosts=known_hosts, timeout_s=timeout_s)
    else:
        # no protocol may cache the listing of a folder
        options = {"skip_instance_cache": True, "use_listings_cache": False}
        system, root = fsspec.core.url_to_fs(url, **options)
    protocols = {system.protocol} if isinstance(system.protocol, str) else {*system.protocol}
    is_local = not protocols.isdisjoint(_LOCAL)
    renames, has_folders = not protocols.isdisjoint(_SSH), protocols.isdisjoint(_OBJECT_STORES)
    return RemoteFolder(system, str(root).rstrip("/"), is_local, is_local or renames, has_folders)


def _connect_sftp(
    host: str, port: int = 22, *, known_hosts: Path | None, timeout_s: float | None, **login: str
) -> Any:
    """Connect to an SFTP server with a known or new host key, which is remembered.

    sshfs accepts any host key unless it is told which ones.
    Raises: HostKeyError: the server has another key than a known one.
    """
    import asyncssh
    from fsspec.asyn import get_loop, sync
    from sshfs import SSHFileSystem

    # it would print the errors of parallel reads, of which the first one is raised here
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    files = (Path.home() / ".ssh/known_hosts", *([known_hosts] if known_hosts else []))
    hosts: Any = asyncssh.read_known_hosts([str(file) for file in files if file.exists()])

    def present_key() -> Any:
        key = sync(get_loop(), asyncssh.get_server_host_key, host, port, timeout=timeout_s)
        assert key is not None, "every server has a key"
        return key

    keys, authorities, *_ = hosts.match(host, "", port)
    if not keys and not authorities:
        key = present_key()
        hosts = ([key], [], [])
        if known_hosts is not None:
            name = host if port == asyncssh.DEFAULT_PORT else f"[{host}]:{port}"
            line = key.export_public_key("openssh").decode().split(" ")
            with suppress(OSError), known_hosts.open("a", encoding="ascii") as file:
                file.write(" ".join((name, *line[:2])).rstrip() + "\n")
    try:
        return SSHFileSystem(
            host, port=port, known_hosts=hosts, timeout=timeout_s, skip_instance_cache=True, **login
        )
    except asyncssh.HostKeyNotVerifiable as error:
        key = present_key()
        raise HostKeyError(
            f"{host} identifies itself with the key {key.get_algorithm()} {key.get_fingerprint()},"
            " and another one is known; if the server was set up again, remove its line from"
            f" {' or '.join(['~/.ssh/known_hosts', *map(str, files[1:])])}"
        ) from error


@contextmanager
def place_errors(attempt: str, hint: str = "") -> Iterator[None]:
    """Raise any error of a place as a StageError; ``hint`` is for those without a remedy."""
    try:
        yield
    except BuildsysError:
        raise
    except Exception as error:  # each protocol has its own
        problem = mask_text(" ".join(f"{attempt}: {type(error).__name__}: {error}".split()))
        raise StageError(problem, _remedy_of(error) or hint) from error


def _remedy_of(error: Exception) -> str:
    """Find the remedy for an error of a place, "" if none is known."""
    if isinstance(error, ImportError):
        return "pip install 'buildsys[remote]', for object storage 'buildsys[s3]'"
    if str(error).startswith("Protocol not known"):
        return "write a folder, or a URL such as sftp://host/dir or s3://bucket/dir"
    return ""
