"""SQLite databases of the state folder.

A damaged file is set aside with a warning. The content of the build state can be made again, so
that costs time but never correctness.
"""

import contextlib
import os
import sqlite3
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from buildsys.errors import StageError
from buildsys.system.files import locked
from buildsys.system.printable import printable_line

VERSION = 4  # bump when a table changes: an older file is set aside, not converted
BUSY_TIMEOUT_S = 30.0
_CHECKSUM_LENGTH = 8
Row = tuple[Any, ...]
Statement = tuple[str, Sequence[Any]]
T = TypeVar("T")
# a lock of our own lets threads share a connection
_connect = partial(sqlite3.connect, check_same_thread=False, isolation_level=None)

TABLES = """
CREATE TABLE file_digests (
    path TEXT PRIMARY KEY, mtime_ns INTEGER, ctime_ns INTEGER, size INTEGER, inode INTEGER,
    digest TEXT, boot TEXT
) WITHOUT ROWID;
CREATE TABLE source_imports (digest TEXT PRIMARY KEY, imports TEXT) WITHOUT ROWID;
CREATE TABLE records (
    target TEXT, key TEXT, seq INTEGER, parts TEXT, outputs TEXT, status TEXT, started TEXT,
    seconds REAL, reason TEXT, hint TEXT, figures TEXT, log TEXT, PRIMARY KEY (target, key)
);
CREATE INDEX records_by_age ON records (target, seq);
CREATE TABLE history (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT, key TEXT, status TEXT, started TEXT,
    seconds REAL, reason TEXT, why TEXT
);
CREATE INDEX history_by_target ON history (target, seq);
CREATE TABLE owned (path TEXT PRIMARY KEY, target TEXT) WITHOUT ROWID;
CREATE TABLE forgotten (target TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE INDEX owned_by_target ON owned (target);
CREATE TABLE settled_models (
    model TEXT PRIMARY KEY, valid_in TEXT, token TEXT, about TEXT, files TEXT
) WITHOUT ROWID;
"""


class Schema(NamedTuple):
    """Tables of a database, and the words of messages about it."""

    version: int
    tables: str
    subject: str
    remedy: str
    lost: str  # without the file
    # a number in the file's header: a newer file and one of another program are left as they are
    application_id: int = 0
    busy_timeout_s: float = BUSY_TIMEOUT_S


BUILD_STATE = Schema(
    VERSION,
    TABLES,
    "the build state",
    "its folder must be writable and its disk not full; deleting the file is safe and costs a "
    "rebuild",
    "nothing is known of earlier builds",
)


def warn_on_stderr(message: str) -> None:
    """Print a warning as one plain line."""
    sys.stderr.write(f"buildsys: warning: {printable_line(message)}\n")


class StateDb:
    """A SQLite connection, safe against a deleted, replaced or corrupted file.

    WAL with synchronous=NORMAL: a killed process loses nothing that it committed. A power cut may
    lose the last commits, which makes their targets stale.

    ``get`` and ``set`` make it a ``TextCache``.
    """

    def __init__(
        self,
        path: Path,
        notify: Callable[[str], None] = warn_on_stderr,
        schema: Schema = BUILD_STATE,
    ) -> None:
        self.path = path
        self._schema = schema
        self._lock = path.with_name(path.name + ".lock")
        self.notify = notify
        self._texts: dict[str, str] = {}
        self._guard = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._read_only: sqlite3.Connection | None = None  # on a read-only or full disk

    def read(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        """Read all rows of a query; a read-only disk is enough."""
        with self._guard:
            if self._read_only is None:
                try:
                    return self._attempt(lambda db: db.execute(query, values).fetchall())
                except StageError:
                    with contextlib.suppress(sqlite3.Error):
                        self._read_only = self._open_read_only()
                    if self._read_only is None:
                        raise
            return self._read_only.execute(query, values).fetchall()

    def write(self, statements: Iterable[Statement]) -> None:
        """Execute statements as one transaction: all of them or none."""
        steps = list(statements)

        def transaction(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for statement, values in steps:
                    connection.execute(statement, values)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

        with self._guard:
            # everything written to a deleted file would vanish with this process
            deleted = self._connection is not None and not self._is_current()
            if self._read_only is not None or deleted:
                self.close()
            self._attempt(transaction)

    def get(self, name: str, /) -> str | None:
        """Look up the text stored under ``name``, or None."""
        if name not in self._texts:
            # the table is named after its first use: the imports of a source file
            rows = self.read("SELECT imports FROM source_imports WHERE digest = ?", (name,))
            stored = rows[0][0] if rows else None
            text = stored[_CHECKSUM_LENGTH:] if isinstance(stored, str) else ""
            if stored != _checksum(text) + text:  # absent or damaged
                return None
            self._texts[name] = text
        return self._texts[name]

    def set(self, name: str, text: str, /) -> None:
        """Store ``text`` under ``name``; on a full disk for this process only."""
        self._texts[name] = text
        stored = _checksum(text) + text
        with contextlib.suppress(StageError):
            self.write([("INSERT OR REPLACE INTO source_imports VALUES (?, ?)", (name, stored))])

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._guard:
            for connection in (self._connection, self._read_only):
                if connection is not None:
                    connection.close()
            self._connection = self._read_only = None

    def _attempt(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do work with an open connection, again after a recovery."""
        try:
            try:
                return work(self._open())
            except sqlite3.DatabaseError as error:
                self._recover(error)
                return work(self._open())
        except (sqlite3.DatabaseError, OSError) as error:
            self.close()
            hint = "" if isinstance(error, sqlite3.NotSupportedError) else self._schema.remedy
            cause = getattr(error, "strerror", None) or error
            problem = f"cannot use {self._schema.subject} {self.path}: {cause}"
            raise StageError(problem, hint) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            schema = self._schema
            connection = _connect(self.path, timeout=schema.busy_timeout_s)
            try:
                connection.execute("PRAGMA synchronous=NORMAL")
                if not self._has_tables(connection):
                    with locked(self._lock):  # two processes may create it at the same time
                        if not self._has_tables(connection):
                            connection.execute("PRAGMA journal_mode=WAL")
                            header = f"PRAGMA user_version={schema.version};"
                            header += f"PRAGMA application_id={schema.application_id};"
                            script = f"BEGIN IMMEDIATE; {schema.tables} {header} COMMIT;"
                            connection.executescript(script)
            except sqlite3.DatabaseError:
                self._inode = _inode(self.path)
                connection.close()
                raise
            self._connection, self._inode = connection, _inode(self.path)
        return self._connection

    def _recover(self, error: sqlite3.DatabaseError) -> None:
        """Make the next open succeed. Raises: sqlite3.DatabaseError: the user has to help."""
        self.close()
        if not self._is_current():
            return  # deleted or replaced meanwhile: opening it again is enough
        damaged = type(error) is sqlite3.DatabaseError or str(error).startswith("no such table")
        if not damaged:
            raise error
        with locked(self._lock):
            if not self._is_current():
                return  # another process was faster
            suffix = f".broken-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
            for part in ("", "-wal", "-shm"):
                path = self.path.with_name(self.path.name + part)
                if path.exists():
                    path.rename(self.path.with_name(self.path.name + suffix + part))
            self.notify(
                f"{self._schema.subject} {self.path} is not readable ({error}); "
                f"set aside as {self.path.name}{suffix}"
            )

    def _open_read_only(self) -> sqlite3.Connection:
        """Open an existing file without a write. Raises: sqlite3.Error: it cannot be used.

        Even to read a database with a write-ahead log, SQLite writes next to it. ``immutable``
        prevents that and is correct while there is no log, as then no process has the file open. If
        one way fails, the other may work.
        """
        modes = ["mode=ro&immutable=1", "mode=ro"]
        if self.path.with_name(self.path.name + "-wal").exists():
            modes.reverse()
        try:
            return self._open_in(modes[0])
        except sqlite3.OperationalError:
            return self._open_in(modes[1])

    def _open_in(self, mode: str) -> sqlite3.Connection:
        connection = _connect(f"{self.path.absolute().as_uri()}?{mode}", uri=True)
        try:
            if not self._has_tables(connection):
                raise sqlite3.DatabaseError("it has no tables")
        except BaseException:
            connection.close()
            raise
        return connection

    def _has_tables(self, connection: sqlite3.Connection) -> bool:
        """Return True for an initialized database.

        Raises: sqlite3.DatabaseError: another version. sqlite3.NotSupportedError: one to be left
        as it is.
        """
        ours = self._schema
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if ours.application_id:
            application_id = int(connection.execute("PRAGMA application_id").fetchone()[0])
            is_empty = not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
            if application_id != ours.application_id and (version or not is_empty):
                raise sqlite3.NotSupportedError(f"it is not {ours.subject}")
            if version > ours.version:
                raise sqlite3.NotSupportedError(
                    f"a newer buildsys wrote it (schema {version}, this one reads {ours.version}); "
                    "update buildsys"
                )
        if version not in (0, ours.version):
            raise sqlite3.DatabaseError(
                f"it has version {version}, this buildsys writes {ours.version}"
            )
        return version == ours.version

    def _is_current(self) -> bool:
        """Return True if the opened file is still at its path."""
        inode = _inode(self.path)
        return inode != 0 and inode == self._inode  # 0: it was deleted, perhaps while it was opened


class ReadOnlyStateDb(StateDb):
    """The state database for read-only commands: never written, moved or created.

    A missing or unreadable file counts as empty; writes are dropped.
    """

    problem = ""  # why the file is unreadable

    def read(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """Read all rows of a query; none, with one warning, if damaged."""
        with self._guard:
            try:
                return self.query(query, values)
            except (sqlite3.DatabaseError, OSError) as error:
                self.close()
                if self.path.exists():
                    hint = "" if os.access(self.path, os.R_OK) else "; check its permissions"
                    file = f"{self._schema.subject} {self.path}"
                    self.problem = f"{file} cannot be read ({error}{hint})"
                    self.notify(f"{self.problem}: {self._schema.lost}")
            self._read_only = _connect(":memory:")
            self._read_only.executescript(self._schema.tables).close()
            return self._read_only.execute(query, values).fetchall()

    def query(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """Read all rows of a query. Raises: sqlite3.DatabaseError, OSError: it is not readable."""
        with self._guard:
            if self._read_only is None:
                self._read_only = self._open_read_only()
            return self._read_only.execute(query, values).fetchall()

    def write(self, statements: Iterable[Statement]) -> None:
        """Drop the statements."""


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode(errors='surrogatepass')):0{_CHECKSUM_LENGTH}x}"


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
