"""Import of the history of another machine: merged by id, idempotent."""

# ruff: noqa: S608 - all names in the statements are our own

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import StageError, UsageError
from buildsys.history.builds import NUMBERS, TEXTS
from buildsys.history.database import (
    ALL_MEASUREMENT_COLUMNS,
    BUILD_COLUMNS,
    HISTORY,
    History,
    unpack_text,
)
from buildsys.report.formatting import plural
from buildsys.store.state_db import ReadOnlyStateDb, Row

_FUTURE_S = 60.0
_TABLES = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
_IS_BUILD = " AND ".join(
    [
        *(f"typeof({name}) = 'text'" for name in (*TEXTS, "outputs", "figures")),
        *(f"typeof({name}) = 'real' AND abs({name}) < 9e99" for name in NUMBERS),
    ]
)
_ADD_ALL = f"""
CREATE TEMP TABLE added AS SELECT id FROM other.builds
    WHERE {_IS_BUILD} AND id NOT IN (SELECT id FROM main.builds);
INSERT OR IGNORE INTO main.builds ({BUILD_COLUMNS})
    SELECT {BUILD_COLUMNS} FROM other.builds WHERE id IN added;
INSERT OR IGNORE INTO main.measurements ({ALL_MEASUREMENT_COLUMNS})
    SELECT {ALL_MEASUREMENT_COLUMNS} FROM other.measurements WHERE build IN added;
INSERT OR IGNORE INTO main.texts SELECT digest, content FROM other.texts
    WHERE is_text(digest, content);
"""


class Imported(NamedTuple):
    """The result of an import."""

    added: int
    known: int  # recorded before
    notes: tuple[str, ...]  # sentences on what looks wrong


def import_history(history: History, file: Path, project: str = "") -> Imported:
    """Add another history's builds; the other history stays unchanged.

    Raises: UsageError: the file is not a history, or damaged. StageError: our own history cannot be
    written.
    """
    if not file.is_file():
        raise UsageError(f"there is no file {file}", "name the file history.db of another machine")
    if history.path.exists() and file.samefile(history.path):
        raise UsageError(
            f"{file} is the history of this project itself", "name the history of another machine"
        )
    _check_history(file)
    machines = history.machines()  # makes the file, or checks it
    history.close()
    try:
        with closing(_attach(history.path, file)) as db:
            db.executescript(f"BEGIN IMMEDIATE; {_ADD_ALL}")
            ours = "FROM main.builds WHERE id IN added"
            counts = [
                db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("added", "other.builds", f"other.builds WHERE NOT ({_IS_BUILD})")
            ]
            projects = db.execute(f"SELECT project, count(*) {ours} GROUP BY project").fetchall()
            future = db.execute(
                f"SELECT machine, count(*) {ours} AND position > ? GROUP BY machine",
                (time.time() + _FUTURE_S,),
            ).fetchall()
            db.execute("COMMIT")
    except sqlite3.Error as error:
        raise StageError(f"cannot import {file} into {history.path}: {error}") from None
    added, total, damaged = counts
    notes = [
        f"two machines are called {name}; their ids are {' and '.join(sorted(ids))}"
        for name, ids in history.machines().items()
        if len(ids) > len(machines.get(name, ())) and len(ids) > 1
    ]
    notes += [
        f"{plural(count, 'build')} came from another project, {other}"
        for other, count in projects
        if project and other not in (project, "")
    ]
    notes += [
        f"{plural(count, 'build')} of {machine} came from the future, as its clock was ahead"
        for machine, count in future
    ]
    if damaged:
        notes.append(f"{plural(damaged, 'build')} of {file} cannot be read and is left out")
    return Imported(added, total - damaged - added, tuple(notes))


def copy_history(file: Path, folder: Path) -> Path:
    """Copy a history with what is only in its write-ahead log; return the copy."""
    copy = folder / file.name
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def _check_history(file: Path) -> None:
    """Raise UsageError for a file that is not a whole history of this version."""
    other = ReadOnlyStateDb(file, schema=HISTORY)
    try:
        tables = set(other.query(_TABLES))
        # a view or a generated column could compute without end
        problem = "" if tables == _expected_tables() else "its tables are not those of a history"
        if not problem and (damage := other.query("PRAGMA quick_check(1)")) != [("ok",)]:
            problem = f"it is damaged ({' '.join(str(damage[0][0]).split())})"
    except (sqlite3.DatabaseError, OSError) as error:
        problem = str(error)
    finally:
        other.close()
    if problem:
        hint = "name an undamaged copy of history.db of another machine"
        raise UsageError(f"cannot import {file}: {problem}", hint)


def _attach(ours: Path, file: Path) -> sqlite3.Connection:
    """Open our history with another one as ``other``, which is only read."""
    db = sqlite3.connect(
        ours.absolute().as_uri(), timeout=HISTORY.busy_timeout_s, isolation_level=None, uri=True
    )
    db.execute("PRAGMA trusted_schema = OFF")
    db.create_function("is_text", 2, lambda *text: unpack_text(*text) is not None)
    has_log = file.with_name(f"{file.name}-wal").exists()
    mode = "mode=ro" if has_log else "mode=ro&immutable=1"
    db.execute("ATTACH ? AS other", (f"{file.absolute().as_uri()}?{mode}",))
    return db


def _expected_tables() -> set[Row]:
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(HISTORY.tables)
        return set(empty.execute(_TABLES))
