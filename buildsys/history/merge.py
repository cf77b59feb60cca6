"""Import of the history of another machine: merged by id, idempotent."""

# ruff: noqa: S608 - all names in the statements are our own

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import StageError, UsageError
from buildsys.history.database import ALL_MEASUREMENT_COLUMNS, BUILD_COLUMNS, HISTORY, History
from buildsys.report.formatting import plural
from buildsys.store.state_db import ReadOnlyStateDb

_ADD_ALL = f"""
BEGIN IMMEDIATE;
CREATE TEMP TABLE added AS SELECT id FROM other.builds WHERE id NOT IN (SELECT id FROM main.builds);
INSERT OR IGNORE INTO main.builds ({BUILD_COLUMNS})
    SELECT {BUILD_COLUMNS} FROM other.builds WHERE id IN added;
INSERT OR IGNORE INTO main.measurements ({ALL_MEASUREMENT_COLUMNS})
    SELECT {ALL_MEASUREMENT_COLUMNS} FROM other.measurements WHERE build IN added;
INSERT OR IGNORE INTO main.texts SELECT digest, content FROM other.texts;
"""
_PROJECTS = "SELECT project, count(*) FROM main.builds WHERE id IN added GROUP BY project"


class Imported(NamedTuple):
    """The result of an import."""

    added: int
    known: int  # recorded before
    notes: tuple[str, ...]  # sentences on builds that other projects have made


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
    total = _count_builds(file)
    history.models()  # makes the file, or checks it
    history.close()
    uri = history.path.absolute().as_uri()
    # a closed history has no write-ahead log, and its folder may be read-only
    has_log = file.with_name(f"{file.name}-wal").exists()
    mode = "mode=ro" if has_log else "mode=ro&immutable=1"
    db = sqlite3.connect(uri, timeout=HISTORY.busy_timeout_s, isolation_level=None, uri=True)
    try:
        with closing(db):
            db.execute("ATTACH ? AS other", (f"{file.absolute().as_uri()}?{mode}",))
            db.executescript(_ADD_ALL)
            projects = db.execute(_PROJECTS).fetchall()
            db.execute("COMMIT")
    except sqlite3.Error as error:
        raise StageError(f"cannot import {file} into {history.path}: {error}") from None
    notes = [
        f"{plural(count, 'build')} came from another project, {other}"
        for other, count in projects
        if project and other not in (project, "")
    ]
    added = sum(count for _, count in projects)
    return Imported(added, total - added, tuple(notes))


def copy_history(file: Path, folder: Path) -> Path:
    """Copy a history with what is only in its write-ahead log; return the copy."""
    copy = folder / file.name
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def _count_builds(file: Path) -> int:
    """Count the builds of a history. Raises: UsageError: it is none of this version, or damaged."""
    other = ReadOnlyStateDb(file, schema=HISTORY)
    try:
        problem = str(other.query("PRAGMA quick_check(1)")[0][0])
        if problem == "ok":
            count: int = other.query("SELECT count(*) FROM builds")[0][0]
            return count
        problem = f"it is damaged ({' '.join(problem.split())})"
    except (sqlite3.DatabaseError, OSError) as error:
        problem = str(error)
    finally:
        other.close()
    hint = "name an undamaged copy of history.db of another machine"
    raise UsageError(f"cannot import {file}: {problem}", hint)
