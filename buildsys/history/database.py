"""The history of builds and benchmarks: one SQLite file per project.

It cannot be rebuilt, unlike the build state. It is therefore a separate file, no build depends on
it, and a file of a newer version is never written. The history of another machine is merged by id.
"""

import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.errors import StageError, UsageError
from buildsys.history.builds import (
    COLUMNS,
    MEASUREMENT_COLUMNS,
    RAN,
    RESTORED,
    Build,
    Measurement,
    build_row,
    measurement_row,
    read_build,
    read_measurement,
)
from buildsys.store.state_db import ReadOnlyStateDb, Schema, StateDb, Statement, warn_on_stderr

# ruff: noqa: S608 - all names in the statements are our own


HISTORY = Schema(
    1,  # bump when a table changes, and convert older files: they are set aside otherwise
    """
CREATE TABLE builds (
    id TEXT PRIMARY KEY, run TEXT, project TEXT, target TEXT, model TEXT, stage TEXT, variant TEXT,
    key TEXT, how TEXT, status TEXT, started TEXT, position REAL, seconds REAL, reason TEXT,
    why TEXT, revision TEXT, dirty INTEGER, machine TEXT, machine_id TEXT, environment TEXT,
    manifest TEXT, outputs TEXT, figures TEXT
);
CREATE INDEX builds_by_target ON builds (target, position);
CREATE INDEX builds_by_model ON builds (model, position);
CREATE INDEX builds_by_machine ON builds (machine_id, position);
CREATE TABLE measurements (
    build TEXT, number INTEGER, case_name TEXT, contender TEXT, clock TEXT, dims TEXT,
    batch INTEGER, count INTEGER, p50_ms REAL, low_ms REAL, high_ms REAL, figures TEXT,
    stored INTEGER, samples BLOB, PRIMARY KEY (build, number)
);
CREATE TABLE texts (digest TEXT PRIMARY KEY, content BLOB) WITHOUT ROWID;
""",  # nothing writes ``stored`` and ``samples`` any more
    "the history of builds",
    "its folder must be writable and its disk not full",
    "it counts as empty",
    application_id=0x62736873,
    busy_timeout_s=2.0,
)
BUILD_COLUMNS = ", ".join(COLUMNS)
ALL_MEASUREMENT_COLUMNS = ", ".join(("build", "number", *MEASUREMENT_COLUMNS))
_PLACES = {name: f"?{number}" for number, name in enumerate(COLUMNS, 1)}
_PLACES["position"] = (  # after all others of the machine
    f"max({_PLACES['position']}, coalesce((SELECT max(position) FROM builds"
    f" WHERE machine_id = {_PLACES['machine_id']} AND position < 4e9), 0) + 0.001)"
)
_INSERT_BUILD = (
    f"INSERT OR IGNORE INTO builds ({BUILD_COLUMNS}) VALUES ({', '.join(_PLACES.values())})"
)
_INSERT_MEASUREMENT = (
    f"INSERT OR IGNORE INTO measurements ({ALL_MEASUREMENT_COLUMNS}) "
    f"VALUES ({', '.join('?' * (2 + len(MEASUREMENT_COLUMNS)))})"
)
_INSERT_TEXT = "INSERT OR IGNORE INTO texts VALUES (?, ?)"
_DROP_REPEATED = """
DELETE FROM builds WHERE run = ? AND how = ? AND EXISTS (
    SELECT 1 FROM builds AS first WHERE first.run = builds.run AND first.how = ?
    AND first.target = builds.target AND first.key = builds.key
)
"""


class History:
    """The history of a project. Threads and processes may share it."""

    def __init__(
        self, path: Path, notify: Callable[[str], None] = warn_on_stderr, *, read_only: bool = False
    ) -> None:
        self.path = path
        self._db = (ReadOnlyStateDb if read_only else StateDb)(path, notify, HISTORY)

    @classmethod
    def read_only(cls, path: Path, notify: Callable[[str], None] = warn_on_stderr) -> "History":
        """Open a history for queries. A missing or unreadable file counts as empty."""
        return cls(path, notify, read_only=True)

    @classmethod
    def readable(cls, path: Path) -> "History":
        """Open a history for queries. Raises: UsageError: the file is unreadable."""
        history = cls.read_only(path, lambda _: None)
        history.models()
        if history.problem:
            raise UsageError(history.problem)
        return history

    @property
    def problem(self) -> str:
        """Why the file counts as empty, "" if it is readable or missing."""
        return self._db.problem if isinstance(self._db, ReadOnlyStateDb) else ""

    def builds(
        self,
        *,
        target: str = "",
        model: str = "",
        project: str = "",
        machine_id: str = "",
        limit: int = -1,
    ) -> list[Build]:
        """List builds, newest first. Builds of an unknown project belong to every project."""
        # `+`: the index of machines would lead through all builds of one
        machine = "+machine_id" if target or model else "machine_id"
        conditions = {
            "target = ?": target, "model = ?": model,
            f"{machine} = ?": machine_id, "project IN (?, '')": project,
        }  # fmt: skip
        values = {condition: value for condition, value in conditions.items() if value}
        rows = self._db.read(
            f"SELECT {BUILD_COLUMNS} FROM builds WHERE {' AND '.join(values) or '1'} "
            "ORDER BY position DESC LIMIT ?",
            (*values.values(), limit),
        )
        return [build for build in map(read_build, rows) if build is not None]

    def find(self, prefix: str) -> Build:
        """Find the build with an id. Raises: UsageError: none or several begin with ``prefix``."""
        query = f"SELECT {BUILD_COLUMNS} FROM builds WHERE id >= ? AND id < ? LIMIT 2"
        rows = self._db.read(query, (prefix, prefix + "g")) if prefix else []
        builds = [build for build in map(read_build, rows) if build is not None]
        if len(builds) != 1:
            count = "several builds have" if builds else "there is no build with"
            raise UsageError(f"{count} the id {prefix}", "`buildsys history MODEL` lists ids")
        return builds[0]

    def measurements(self, build: Build) -> tuple[Measurement, ...]:
        """List a benchmark's measurements, from its original build if restored."""
        columns = ", ".join(MEASUREMENT_COLUMNS)
        query = f"SELECT {columns} FROM measurements WHERE build = ? ORDER BY number"
        rows = self._db.read(query, (build.id,))
        if not rows and build.how == RESTORED:
            original = self._db.read(
                "SELECT id FROM builds WHERE target = ? AND key = ? AND how = ? AND position < ? "
                "ORDER BY position DESC LIMIT 1",
                (build.target, build.key, RAN, build.position),
            )
            rows = self._db.read(query, original[0]) if original else []
        return tuple(read for read in map(read_measurement, rows) if read is not None)

    def environment(self, build: Build) -> dict[str, str]:
        """Read the parts of a build's key for devices, libraries and variables."""
        return {name: str(value) for name, value in self._json(build.environment).items()}

    def manifest(self, build: Build) -> dict[str, Any]:
        """Read the resolved manifest of a build's model, {} if unknown."""
        return self._json(build.manifest)

    def count_machines(self) -> int:
        """Count the machines that have built."""
        rows = self._db.read("SELECT count(DISTINCT machine_id) FROM builds")
        return int(rows[0][0]) if rows else 0

    def models(self) -> list[str]:
        """List the recorded models, sorted."""
        rows = self._db.read("SELECT DISTINCT model FROM builds")
        return sorted(name for (name,) in rows if isinstance(name, str))

    def targets(self, stage: str) -> list[str]:
        """List the recorded targets of a stage, sorted."""
        rows = self._db.read("SELECT DISTINCT target FROM builds WHERE stage = ?", (stage,))
        return sorted(name for (name,) in rows if isinstance(name, str))

    def add(
        self, build: Build, measurements: Sequence[Measurement] = (), texts: Iterable[str] = ()
    ) -> None:
        """Add a build after all others of its machine.

        ``texts`` are its environment and manifest. Raises: StageError: it cannot be written.
        """
        statements: list[Statement] = [(_INSERT_BUILD, build_row(build))]
        statements += [(_INSERT_TEXT, (digest_of(t), zlib.compress(t.encode()))) for t in texts]
        self._db.write([*statements, *_measurement_statements(build, measurements)])

    def add_measurements(self, build: Build, measurements: Sequence[Measurement]) -> None:
        """Add a recorded benchmark's measurements. Raises: StageError: they cannot be written."""
        self._db.write(_measurement_statements(build, measurements))

    def drop_repeated(self, run: str) -> None:
        """Remove what a run both built and restored. Raises: StageError: cannot be written."""
        self._db.write([(_DROP_REPEATED, (run, RESTORED, RAN))])

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._db.close()

    def _json(self, digest: str) -> dict[str, Any]:
        """Read a text; {} if it is damaged or of another digest."""
        rows = self._db.read("SELECT content FROM texts WHERE digest = ?", (digest,))
        try:
            text = zlib.decompress(rows[0][0]).decode()
            content = json.loads(text) if digest_of(text) == digest else None
        except (LookupError, TypeError, ValueError, RecursionError, zlib.error):
            content = None
        return content if isinstance(content, dict) else {}


def history_file(state: Path) -> Path:
    """Locate the history: BUILDSYS_HISTORY or in the state folder."""
    return state.parent / (os.environ.get("BUILDSYS_HISTORY") or state / "history.db")


def digest_of(text: str) -> str:
    """Name a text in the history."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _measurement_statements(build: Build, measurements: Iterable[Measurement]) -> list[Statement]:
    return [
        (_INSERT_MEASUREMENT, (build.id, number, *measurement_row(measurement)))
        for number, measurement in enumerate(measurements)
    ]


_COUNT = """
SELECT count(*), coalesce(sum(position NOT BETWEEN 0 AND strftime('%s', 'now') + 86400), 0)
FROM builds
"""
_ADD_ALL = f"""
BEGIN IMMEDIATE;
CREATE TEMP TABLE added AS SELECT id FROM other.builds WHERE id NOT IN (SELECT id FROM main.builds);
INSERT OR IGNORE INTO main.builds ({BUILD_COLUMNS})
    SELECT {BUILD_COLUMNS} FROM other.builds WHERE id IN added;
INSERT OR IGNORE INTO main.measurements ({ALL_MEASUREMENT_COLUMNS})
    SELECT {ALL_MEASUREMENT_COLUMNS} FROM other.measurements WHERE build IN added;
INSERT OR IGNORE INTO main.texts SELECT digest, content FROM other.texts;
"""


class Imported(NamedTuple):
    """The result of an import."""

    added: int
    known: int  # recorded before


def import_history(history: History, file: Path) -> Imported:
    """Add another history's builds; the other history stays unchanged.

    Raises: UsageError: the file is not a history, or damaged. StageError: our own history cannot be
    written.
    """
    if not file.is_file():
        raise UsageError(f"there is no file {file}", "name the file history.db of another machine")
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
            ((added,),) = db.execute("SELECT count(*) FROM added").fetchall()
            db.execute("COMMIT")
    except sqlite3.Error as error:
        problem = f"cannot import {file} into {history.path}: {error}"
        raise StageError(problem, "check the file, and the free space") from None
    return Imported(added, total - added)


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
            ((count, misplaced),) = other.query(_COUNT)
            if not misplaced:
                return int(count)
            problem = f"{misplaced} of its builds are not from between 1970 and now"
        else:
            problem = f"it is damaged ({' '.join(problem.split())})"
    except (sqlite3.DatabaseError, OSError) as error:
        problem = str(error)
    finally:
        other.close()
    hint = "name an undamaged copy of history.db of another machine"
    raise UsageError(f"cannot import {file}: {problem}", hint)
