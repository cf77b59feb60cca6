"""Content digests of files, remembered by what stat says so that a large file is read once.

A power cut may take the content of a recently written file and leave its times and size. A digest therefore
counts only until the machine restarts.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from buildsys.errors import StageError
from buildsys.store.state_db import StateDb, Statement

# File times advance in steps of up to 10 ms: a file that was written this shortly before it was read can be
# written again without any change in its times, so what was read then is not remembered.
SETTLE_NS = 30_000_000
_CHUNK_BYTES = 1 << 18
_LARGE_BYTES = (
    8 << 20
)  # from here on larger chunks are worth their memory, and each is digested by several cores
_LARGE_CHUNK_BYTES = 4 << 20
THREADS_FROM_BYTES = 4 << 20
_ATTEMPTS = 3
_FEW_FILES = 300  # asked for one by one; from then on reading all rows at once is faster
T = TypeVar("T")

_INSERT = "INSERT OR REPLACE INTO file_digests VALUES (?, ?, ?, ?, ?, ?, ?)"
_COLUMNS = "mtime_ns, ctime_ns, size, inode, digest"
_SELECT = f"SELECT {_COLUMNS} FROM file_digests WHERE path = ? AND boot = ?"  # noqa: S608 - our own column names
_SELECT_ALL = f"SELECT path, {_COLUMNS} FROM file_digests WHERE boot = ?"  # noqa: S608 - as above


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
                digest = _hash_stream(file.readinto, before.size)
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
        self._known: dict[str, tuple[int, int, int, int, str]] = {}
        self._asked = 0  # for single files that were not known yet
        self._whole = False  # all rows are in the memory
        self._guard = threading.Lock()

    def digest(self, path: str) -> FileDigest | None:
        """Return the digest of one file, None when there is no such file."""
        stamp = stamp_file(path)
        if stamp is None:
            return None
        known = self._load_for(1).get(path)
        if known is not None and known[:4] == stamp:
            return FileDigest(known[4], stamp)
        return self._lookup(path, stamp) or self._read([path])[0]

    def digests(self, paths: Iterable[str]) -> dict[str, FileDigest | None]:
        """Return the digests of many files; those that must be read are read in parallel."""
        found: dict[str, FileDigest | None] = {}
        unread: list[str] = []
        wanted = list(paths)
        known = self._load_for(len(wanted))
        for path in wanted:
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
        statements: list[Statement] = []
        for path, (digest, stamp) in files:
            self._known[path] = (*stamp, digest)
            statements.append((_INSERT, (path, *stamp, digest, boot_id())))
        if statements:
            self._db.write(statements)

    def drop(self, path: str) -> None:
        """Forget a file, so that it is read when it is next asked for."""
        self._known.pop(path, None)
        self._db.write(
            [
                ("DELETE FROM file_digests WHERE path = ?", (path,)),
                ("DELETE FROM settled_models", ()),
            ]
        )

    def _load_for(self, count: int) -> dict[str, tuple[int, int, int, int, str]]:
        """Return what is known of files, from the first few hundred questions on of all files at once."""
        if not self._whole:
            self._asked += count
            if self._asked > _FEW_FILES:
                with self._guard:
                    if not self._whole:
                        for path, *row in self._db.read(_SELECT_ALL, (boot_id(),)):
                            self._known.setdefault(path, tuple(row))
                        self._whole = True
        return self._known

    def _lookup(self, path: str, stamp: Stamp) -> FileDigest | None:
        """Return what another process may have stored since this one loaded the memo."""
        rows = self._db.read(_SELECT, (path, boot_id()))
        if not rows or rows[0][:4] != stamp:
            return None
        self._known[path] = rows[0]
        return FileDigest(rows[0][4], stamp)

    def _read(self, paths: list[str]) -> list[FileDigest]:
        begun_ns = time.time_ns()
        sizes = [stamp.size for stamp in map(stamp_file, paths) if stamp is not None]
        jobs = [partial(hash_file, path) for path in paths]
        digests = run_all(jobs, in_threads=sum(sizes) >= THREADS_FROM_BYTES)
        pairs = zip(paths, digests, strict=True)
        self.remember((path, found) for path, found in pairs if _is_settled(found.stamp, begun_ns))
        return digests


@cache
def boot_id() -> str:
    """Return what is the same until the machine starts anew; where that is not known, until this process ends."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.urandom(16).hex()


def run_all(jobs: Sequence[Callable[[], T]], *, in_threads: bool) -> list[T]:
    """Return the results of all jobs in order; hashing lets other threads run meanwhile.

    Raises: what the first job that failed raised.
    """
    if not in_threads or len(jobs) < 2:
        return [job() for job in jobs]
    results: dict[int, T] = {}
    errors: dict[int, Exception] = {}
    waiting = iter(enumerate(jobs))  # shared by the threads: taking the next one is atomic

    def work() -> None:
        for position, job in waiting:
            try:
                results[position] = job()
            except Exception as error:  # handed on below
                errors[position] = error

    # concurrent.futures does the same after an import of 10 ms, which short builds would feel
    threads = [
        threading.Thread(target=work) for _ in range(min(len(jobs), 2 * (os.cpu_count() or 1), 8))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[position] for position in range(len(jobs))]


def _is_settled(stamp: Stamp, read_ns: int) -> bool:
    return max(stamp.mtime_ns, stamp.ctime_ns) + SETTLE_NS < read_ns


def _stamp(found: os.stat_result) -> Stamp:
    # sqlite integers are signed, inode numbers are not
    return Stamp(
        found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino & 0x7FFF_FFFF_FFFF_FFFF
    )


def _hash_stream(read_into: Callable[[memoryview], int | None], size: int) -> str:
    # three to four times as fast as SHA-256, which is what reading large engines back is bound by
    from blake3 import blake3  # not on the path of a run without work

    large = size >= _LARGE_BYTES
    digest = blake3(max_threads=blake3.AUTO if large else 1)
    view = memoryview(bytearray(_LARGE_CHUNK_BYTES if large else min(size + 1, _CHUNK_BYTES)))
    while count := read_into(view):
        digest.update(view[:count])
    return digest.hexdigest()
