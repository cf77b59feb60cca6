"""Content digests of files, cached by stamp.

A power cut may take the content of a recently written file and leave its times and size. A digest
therefore counts only until the machine restarts.
"""

# ruff: noqa: S608 - all names in the statements are our own

import os
import stat
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import StageError
from buildsys.store.state_db import StateDb
from buildsys.system.files import Stamp, open_regular

_CHUNK_BYTES = 4 << 20  # files from two chunks on are digested by several cores
_ATTEMPTS = 3
_READABLE = "check its permissions and its disk"
_Row = tuple[int, int, int, int, str]

_COLUMNS = "mtime_ns, ctime_ns, size, inode, digest"
_SELECT = f"SELECT {_COLUMNS} FROM file_digests WHERE path = ? AND boot = ?"
_INSERT = "INSERT OR REPLACE INTO file_digests VALUES (?, ?, ?, ?, ?, ?, ?)"


class FileDigest(NamedTuple):
    """The BLAKE3 digest of a file and its stamp."""

    digest: str
    stamp: Stamp


def stamp_file(path: str) -> Stamp | None:
    """Stamp a file, None if there is none.

    Raises: StageError: the path cannot be accessed, or is a folder, a FIFO or a device.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - Path costs three times as much
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StageError(f"cannot read {path}: {error.strerror}", _READABLE) from error
    if stat.S_ISDIR(status.st_mode):
        raise StageError(f"{path} is a folder where a file is expected", "remove it or rename it")
    if not stat.S_ISREG(status.st_mode):
        raise StageError(f"{path} is not a regular file", "remove it")  # reading it may not end
    return Stamp.of(status)


def hash_file(path: str) -> FileDigest:
    """Read a file and return its digest.

    Raises: StageError: it cannot be read, or keeps changing.
    """
    # three to four times as fast as SHA-256, which limits how fast large engines are read back
    from blake3 import blake3  # not on the path of a run without work

    try:
        for _ in range(_ATTEMPTS):
            with open_regular(path) as file:
                before = Stamp.of(os.fstat(file.fileno()))
                is_large = before.size >= 2 * _CHUNK_BYTES
                digest = blake3(max_threads=blake3.AUTO if is_large else 1)
                view = memoryview(bytearray(min(before.size + 1, _CHUNK_BYTES)))
                while count := file.readinto(view):
                    digest.update(view[:count])
                if Stamp.of(os.fstat(file.fileno())) == before:
                    return FileDigest(digest.hexdigest(), before)
    except OSError as error:
        raise StageError(f"cannot read {path}: {error.strerror}", _READABLE) from error
    except ValueError as error:
        raise StageError(f"{path} is {error}", "remove it") from error
    raise StageError(f"{path} keeps changing while it is read", "run again when it is complete")


class DigestCache:
    """File digests by path and stamp, kept in the state database.

    Every call stats the file, so a file written since by another stage is noticed.
    """

    def __init__(self, db: StateDb) -> None:
        self._db = db
        self._rows: dict[str, _Row] = {}

    def digest(self, path: str) -> FileDigest | None:
        """Digest a file, None if there is none."""
        return self.digests([path])[path]

    def digests(
        self, paths: Iterable[str], sizes: Mapping[str, int] | None = None
    ) -> dict[str, FileDigest | None]:
        """Digest many files.

        A file with another size than in ``sizes`` is not read; its digest is empty.
        """
        stamps = {path: stamp_file(path) for path in paths}
        digests = {path: stamp and self._cached(path, stamp) for path, stamp in stamps.items()}
        unread = [path for path, stamp in stamps.items() if stamp and not digests[path]]
        expected = sizes or {}
        for path in unread:
            if (stamp := stamps[path]) and stamp.size != expected.get(path, stamp.size):
                digests[path] = FileDigest("", stamp)
        begun_ns = time.time_ns()
        read = {path: hash_file(path) for path in unread if not digests[path]}
        # a file written just before it was read can be written again under the same times
        self.add(item for item in read.items() if item[1].stamp.is_settled(begun_ns))
        return digests | read

    def add(self, files: Iterable[tuple[str, FileDigest]]) -> None:
        """Cache the digests of files.

        Nobody else can have written them since they were digested.
        """
        statements = []
        for path, (digest, stamp) in files:
            self._rows[path] = (*stamp, digest)
            statements.append((_INSERT, (path, *stamp, digest, boot_id())))
        if statements:
            self._db.write(statements)

    def _cached(self, path: str, stamp: Stamp) -> FileDigest | None:
        row = self._rows.get(path)
        if row is None or row[:4] != stamp:
            # another process may have added it since
            rows = self._db.read(_SELECT, (path, boot_id()))
            if not rows or rows[0][:4] != stamp:
                return None
            row = self._rows[path] = rows[0]
        return FileDigest(row[4], stamp) if isinstance(row[4], str) else None  # a damaged row


@cache
def boot_id() -> str:
    """Read the ID of this boot, or make a random one if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.urandom(16).hex()
