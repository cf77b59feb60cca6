"""Content digests of files, remembered by what stat says so that a large file is read once."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from buildsys.errors import StageError
from buildsys.store.state import StateDb, Statement

# File times advance in steps of up to 10 ms: a file that was written this shortly before it was read can be
# written again without any change in its times, so what was read then is not remembered.
SETTLE_NS = 30_000_000
_CHUNK_BYTES = 1 << 20
THREADS_FROM_BYTES = 4 << 20
_ATTEMPTS = 3
T = TypeVar("T")

_INSERT = "INSERT OR REPLACE INTO file_digests VALUES (?, ?, ?, ?, ?, ?)"
_SELECT = "SELECT mtime_ns, ctime_ns, size, inode, digest FROM file_digests"


class Stamp(NamedTuple):
    """What stat says about a file: while it is the same, so is the content."""

    mtime_ns: int
    ctime_ns: int
    size: int
    inode: int


class FileDigest(NamedTuple):
    """The BLAKE3 digest of a file's content and the stamp that the file had then."""

    digest: str
    stamp: Stamp


def stamp_file(path: str) -> Stamp | None:
    """Return the stamp of a file, None when there is none at this path.

    Raises: StageError: the path cannot be looked at, or is a folder.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - asked thousands of times per run; Path costs three times as much
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StageError(f"cannot read {path}: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        raise StageError(f"{path} is a folder where a file is expected")
    return _stamp(found)


def hash_file(path: str) -> FileDigest:
    """Read a file whole and return its digest.

    Raises: StageError: the file cannot be read, or is written all the time.
    """
    try:
        for _ in range(_ATTEMPTS):
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - as above
                before = _stamp(os.fstat(file.fileno()))
                digest = _hash_stream(file.readinto)
                if _stamp(os.fstat(file.fileno())) == before:
                    return FileDigest(digest, before)
    except OSError as error:
        raise StageError(f"cannot read {path}: {error.strerror}") from error
    raise StageError(f"{path} keeps changing while it is read")


class DigestMemo:
    """The digests of files, looked up by path and stamp before a file is read.

    The stat is made at every call: a file that another stage has written since is seen.
    """

    def __init__(self, db: StateDb) -> None:
        self._db = db
        self._known: dict[str, tuple[int, int, int, int, str]] | None = None
        self._guard = threading.Lock()

    def digest(self, path: str) -> FileDigest | None:
        """Return the digest of one file, None when there is no such file."""
        stamp = stamp_file(path)
        if stamp is None:
            return None
        known = self._load().get(path)
        if known is not None and known[:4] == stamp:
            return FileDigest(known[4], stamp)
        return self._lookup(path, stamp) or self._read([path])[0]

    def digests(self, paths: Iterable[str]) -> dict[str, FileDigest | None]:
        """Return the digests of many files; those that must be read are read in parallel."""
        found: dict[str, FileDigest | None] = {}
        unread: list[str] = []
        known = self._load()
        for path in paths:
            stamp = stamp_file(path)
            row = known.get(path)
            if stamp is None:
                found[path] = None
            elif row is not None and row[:4] == stamp:
                found[path] = FileDigest(row[4], stamp)
            else:
                found[path] = self._lookup(path, stamp)
                unread += [path] if found[path] is None else []
        if unread:
            found.update(zip(unread, self._read(unread), strict=True))
        return found

    def remember(self, files: Iterable[tuple[str, FileDigest]]) -> None:
        """Store digests that were made elsewhere, of files that nobody else can have written meanwhile."""
        self._store(list(files))

    def _load(self) -> dict[str, tuple[int, int, int, int, str]]:
        if self._known is None:
            with self._guard:
                if self._known is None:
                    query = "SELECT path, mtime_ns, ctime_ns, size, inode, digest FROM file_digests"
                    self._known = {row[0]: row[1:] for row in self._db.read(query)}
        return self._known

    def _lookup(self, path: str, stamp: Stamp) -> FileDigest | None:
        """Return what another process may have stored since this one loaded the memo."""
        rows = self._db.read(f"{_SELECT} WHERE path = ?", (path,))
        if not rows or rows[0][:4] != stamp:
            return None
        self._load()[path] = rows[0]
        return FileDigest(rows[0][4], stamp)

    def _read(self, paths: list[str]) -> list[FileDigest]:
        begun_ns = time.time_ns()
        sizes = [stamp.size for stamp in map(stamp_file, paths) if stamp is not None]
        jobs = [partial(hash_file, path) for path in paths]
        digests = run_all(jobs, in_threads=sum(sizes) >= THREADS_FROM_BYTES)
        pairs = zip(paths, digests, strict=True)
        self._store([(path, found) for path, found in pairs if _is_settled(found.stamp, begun_ns)])
        return digests

    def _store(self, files: Sequence[tuple[str, FileDigest]]) -> None:
        known = self._load()
        statements: list[Statement] = []
        for path, (digest, stamp) in files:
            known[path] = (*stamp, digest)
            statements.append((_INSERT, (path, *stamp, digest)))
        if statements:
            self._db.write(statements)


def run_all(jobs: Sequence[Callable[[], T]], *, in_threads: bool) -> list[T]:
    """Return the results of all jobs in order; hashing and fsync let other threads run meanwhile."""
    if not in_threads or len(jobs) < 2:
        return [job() for job in jobs]
    from concurrent.futures import ThreadPoolExecutor  # pulls in logging: not on the path of a run without work

    with ThreadPoolExecutor(min(len(jobs), 2 * (os.cpu_count() or 1), 8)) as pool:
        return list(pool.map(_call, jobs))


def _call(job: Callable[[], T]) -> T:
    return job()


def _is_settled(stamp: Stamp, read_ns: int) -> bool:
    return max(stamp.mtime_ns, stamp.ctime_ns) + SETTLE_NS < read_ns


def _stamp(found: os.stat_result) -> Stamp:
    # sqlite integers are signed, inode numbers are not
    return Stamp(found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino & 0x7FFF_FFFF_FFFF_FFFF)


def _hash_stream(read_into: Callable[[memoryview], int | None]) -> str:
    # three to four times as fast as SHA-256, which is what reading large engines back is bound by
    from blake3 import blake3  # not on the path of a run without work

    digest = blake3()
    view = memoryview(bytearray(_CHUNK_BYTES))
    while count := read_into(view):
        digest.update(view[:count])
    return digest.hexdigest()
