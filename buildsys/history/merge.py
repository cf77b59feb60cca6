"""Import of the history of another machine: merged by id, idempotent."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import UsageError
from buildsys.history.builds import BUILD_COLUMNS, Build, read_build
from buildsys.history.database import HISTORY, History
from buildsys.report.formatting import plural
from buildsys.store.state_db import ReadOnlyStateDb, Row

_AT_ONCE = 200  # builds in a transaction, so that builds in progress do not wait long
_UNKNOWN_END = 1 << 40  # instead of the last row number, if it is not readable
_FUTURE_S = 60.0
_TABLES = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"


class Imported(NamedTuple):
    """The result of an import."""

    added: int
    known: int  # recorded before
    notes: tuple[str, ...]  # sentences on what looks wrong


def import_history(history: History, file: Path, project: str = "") -> Imported:
    """Add another history's builds; the other history stays unchanged.

    Of a damaged file, all readable builds are added.
    Raises: UsageError: the file is no history, or not readable at all. StageError: our own history
    cannot be written.
    """
    if not file.is_file():
        raise UsageError(f"there is no file {file}", "name the file history.db of another machine")
    if history.path.exists() and file.samefile(history.path):
        raise UsageError(
            f"{file} is the history of this project itself", "name the history of another machine"
        )
    db = _OtherFile(file)
    source = History(file, db=db)
    try:
        machines, added, known = history.machines(), 0, 0
        projects, future = dict[str, int](), dict[str, int]()
        for builds in db.builds():
            before = history.known([build.id for build in builds])
            history.copy(builds, source)
            known += len(before)
            for build in builds:
                if build.id not in before:
                    added += 1
                    projects[build.project] = projects.get(build.project, 0) + 1
                    if build.position > time.time() + _FUTURE_S:
                        future[build.machine] = future.get(build.machine, 0) + 1
    finally:
        source.close()
    notes = [
        f"two machines are called {name}; their ids are {' and '.join(sorted(ids))}"
        for name, ids in history.machines().items()
        if len(ids) > len(machines.get(name, ())) and len(ids) > 1
    ]
    notes += [
        f"{plural(count, 'build')} came from another project, {other}"
        for other, count in projects.items()
        if project and other not in (project, "")
    ]
    notes += [
        f"{plural(count, 'build')} of {machine} came from the future, as its clock was ahead"
        for machine, count in future.items()
    ]
    if db.damaged:
        notes.append(f"{file} is damaged: parts of it were not readable and are left out")
    return Imported(added, known, tuple(notes))


class _OtherFile(ReadOnlyStateDb):
    """A history to import, possibly damaged in places."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, schema=HISTORY)
        self.damaged = False

    def _has_tables(self, connection: sqlite3.Connection) -> bool:
        # else SQLite refuses a truncated file as a whole; the connection is read-only
        connection.execute("PRAGMA writable_schema = ON")
        return super()._has_tables(connection)

    def read(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """Return all rows of a query, none if they are damaged."""
        try:
            return self.query(query, values)
        except sqlite3.DatabaseError:
            self.damaged = True
            return []

    def builds(self) -> Iterator[list[Build]]:
        """Yield the readable builds in groups.

        Raises: UsageError: there is no readable table.
        """
        try:
            if self._tables() != _expected_tables():
                raise UsageError(
                    f"cannot import {self.path}: its tables are not those of a history",
                    "name a history.db of buildsys",
                )
        except (sqlite3.DatabaseError, OSError) as error:
            raise UsageError(
                f"cannot import {self.path}: {error}",
                "check the file; it is a copy of history.db of another machine",
            ) from None
        ends = self.read("SELECT max(rowid) FROM builds")
        last = (ends[0][0] or 0) if ends else _UNKNOWN_END
        select = f"SELECT rowid, {BUILD_COLUMNS} FROM builds"  # noqa: S608 - constants
        select += " WHERE rowid > ? ORDER BY rowid LIMIT ?"
        at, count, skipped = 0, _AT_ONCE, 1
        while at < last:
            # in a damaged tree SQLite may go back
            rows = [row for row in self.read(select, (at, count)) if row[0] > at]
            found = [build for row in rows if (build := read_build(row[1:])) is not None]
            self.damaged = self.damaged or len(found) < len(rows)
            if rows:
                at, count, skipped = rows[-1][0], min(2 * count, _AT_ONCE), 1
            elif count > 1:  # the first ones may be readable
                count = 1
            else:  # further each time: a hostile file may claim any number of rows
                at, skipped = at + skipped, 2 * skipped
            yield found

    def _tables(self) -> set[Row]:
        return set(self.query(_TABLES))


def _expected_tables() -> set[Row]:
    """Return the tables of a history: a view or a generated column could compute without end."""
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(HISTORY.tables)
        return set(empty.execute(_TABLES))
