"""The sqlite file under the state folder: opened lazily, shared by threads and processes, never trusted blindly.

Whatever it holds can be made again, so a broken file is set aside with a warning: that costs time, not
correctness.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from buildsys.errors import StageError

VERSION = 4  # bump when a table changes: an older file is set aside, not converted
BUSY_TIMEOUT_S = 30.0
Row = tuple[Any, ...]
Statement = tuple[str, Sequence[Any]]
T = TypeVar("T")

TABLES = """
CREATE TABLE file_digests (
    path TEXT PRIMARY KEY, mtime_ns INTEGER, ctime_ns INTEGER, size INTEGER, inode INTEGER, digest TEXT,
    boot TEXT
) WITHOUT ROWID;
CREATE TABLE source_imports (digest TEXT PRIMARY KEY, imports TEXT) WITHOUT ROWID;
CREATE TABLE records (
    target TEXT, key TEXT, seq INTEGER, parts TEXT, outputs TEXT, status TEXT, started TEXT, seconds REAL,
    reason TEXT, hint TEXT, figures TEXT, log TEXT, PRIMARY KEY (target, key)
);
CREATE INDEX records_by_age ON records (target, seq);
CREATE TABLE history (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT, key TEXT, status TEXT, started TEXT, seconds REAL, reason TEXT,
    why TEXT
);
CREATE INDEX history_by_target ON history (target, seq);
CREATE TABLE owned (path TEXT PRIMARY KEY, target TEXT) WITHOUT ROWID;
CREATE TABLE forgotten (target TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE INDEX owned_by_target ON owned (target);
CREATE TABLE settled_models (model TEXT PRIMARY KEY, valid_in TEXT, token TEXT, about TEXT, files TEXT) WITHOUT ROWID;
CREATE TABLE settled_targets (model TEXT, target TEXT, key TEXT, PRIMARY KEY (model, target)) WITHOUT ROWID;
"""


def warn_on_stderr(message: str) -> None:
    """Print a warning as one plain line."""
    sys.stderr.write(f"buildsys: warning: {message}\n")


class StateDb:
    """A sqlite connection that survives a deleted, replaced or corrupted file.

    WAL with synchronous=NORMAL: a killed process loses nothing that was committed; a power cut may lose
    the last commits, which makes their targets stale. What a record says of files that had not reached the disk
    by then is not believed after it (``digest``).
    """

    def __init__(self, path: Path, notify: Callable[[str], None] = warn_on_stderr) -> None:
        self.path = path
        self._notify = notify
        self._guard = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._frozen: sqlite3.Connection | None = (
            None  # on a read-only or full disk: all that is left is looking
        )

    def read(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return all rows of a query; of a file that cannot be opened for writing, what was last written whole."""

        def rows(connection: sqlite3.Connection) -> list[Row]:
            return connection.execute(query, values).fetchall()

        with self._guard:
            if self._frozen is None:
                try:
                    return self._attempt(rows)
                except StageError:
                    self._frozen = _open_frozen(self.path)
                    if self._frozen is None:
                        raise
            return rows(self._frozen)

    def write(self, statements: Iterable[Statement]) -> None:
        """Execute statements as one transaction: all of them or none."""
        steps = list(statements)

        def transaction(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                for statement, values in steps:
                    connection.execute(statement, values)

        with self._guard:
            if self._frozen is not None or (self._connection is not None and not self._is_there()):
                self.close()  # the file was deleted: what is written to it now would vanish with this process
            self._attempt(transaction)

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._frozen is not None:
                self._frozen.close()
                self._frozen = None

    def _attempt(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._guard:
            try:
                return work(self._open())
            except sqlite3.DatabaseError as error:
                damage = error
            except OSError as error:
                raise self._unusable(error) from error
            try:
                self._recover(damage)
                return work(self._open())
            except (sqlite3.DatabaseError, OSError) as error:
                self.close()
                raise self._unusable(error) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, check_same_thread=False, isolation_level=None
            )
            try:
                self._prepare(connection)
            except sqlite3.DatabaseError:
                self._inode = _inode(self.path)
                connection.close()
                raise
            self._connection, self._inode = connection, _inode(self.path)
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")
        version = _version(connection)
        if version == VERSION:
            return
        if version:
            raise sqlite3.DatabaseError(f"it has version {version}, this buildsys writes {VERSION}")
        with self._alone():  # two processes may find it missing at once
            if not _version(connection):
                connection.execute("PRAGMA journal_mode=WAL")
                connection.executescript(
                    f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version={VERSION}; COMMIT;"
                )

    def _recover(self, error: sqlite3.DatabaseError) -> None:
        """Make the next open succeed, or raise what the user can do."""
        self.close()
        if not self._is_there():
            return  # deleted or replaced behind our back: opening it again is all it takes
        damaged = type(error) is sqlite3.DatabaseError or str(error).startswith("no such table")
        if not damaged:
            raise self._unusable(error) from error
        with self._alone():
            if _inode(self.path) == self._inode:  # else another process was faster
                self._set_aside(str(error))

    def _is_there(self) -> bool:
        """Tell whether the file that was opened is still at its path."""
        inode = _inode(self.path)
        return inode != 0 and inode == self._inode  # 0: it was deleted, perhaps while it was opened

    def _set_aside(self, problem: str) -> None:
        suffix = f".broken-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
        for part in ("", "-wal", "-shm"):
            path = self.path.with_name(self.path.name + part)
            if path.exists():
                path.rename(self.path.with_name(self.path.name + suffix + part))
        self._notify(
            f"the build state {self.path} is not readable ({problem}); set aside as {self.path.name}{suffix}"
        )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self.path.with_name(self.path.name + ".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _unusable(self, error: Exception) -> StageError:
        return StageError(
            f"cannot use the build state {self.path}: {error}",
            "its folder must be writable and its disk not full; deleting the file is safe and costs a rebuild",
        )


def _open_frozen(path: Path) -> sqlite3.Connection | None:
    """Open a file that nobody can write to, not even sqlite its log; None if that tells nothing.

    Commits that a killed process left in the log are not seen: their targets are stale until it can be written.
    """
    connection = None
    with contextlib.suppress(sqlite3.Error):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
        )
        if _version(connection) == VERSION:
            return connection
    if connection is not None:
        connection.close()
    return None


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
