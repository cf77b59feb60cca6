"""The history of builds and benchmarks: one SQLite file per project.

It cannot be rebuilt, unlike the build state. It is therefore a separate file, no build depends on
it, and a file of a newer version is never written.
"""

# ruff: noqa: S608 - all names in the statements are our own

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from buildsys.errors import UsageError
from buildsys.history.builds import (
    BUILD_COLUMNS,
    COLUMNS,
    MEASUREMENT_COLUMNS,
    RAN,
    RESTORED,
    Build,
    BuildSummary,
    Measurement,
    build_row,
    evenly_spaced,
    measurement_row,
    pack_samples,
    read_build,
    read_measurement,
    read_object,
    read_summary,
    unpack_samples,
)
from buildsys.stages.table import BENCH
from buildsys.store.state_db import ReadOnlyStateDb, Schema, StateDb, Statement, warn_on_stderr

FULL_BENCHMARKS = 20  # per target; older ones keep THINNED_SAMPLES per measurement
THINNED_SAMPLES = 256
_CHUNK = 500  # parameters of one query
_MAX_TEXT_BYTES = 64 << 20  # of a resolved manifest

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
""",
    "the history of builds",
    "its folder must be writable and its disk not full",
    "it counts as empty",
    application_id=0x62736873,
    busy_timeout_s=2.0,
)


_SUMMARY_COLUMNS = ", ".join(BuildSummary._fields)
_AFTER_THE_LAST = (
    "max(?, coalesce((SELECT max(position) FROM builds WHERE machine_id = ?), 0) + 0.001)"
)
_INSERT_BUILD = (
    f"INSERT OR IGNORE INTO builds ({BUILD_COLUMNS}) "
    f"VALUES ({', '.join(_AFTER_THE_LAST if c == 'position' else '?' for c in COLUMNS)})"
)
_COPY_BUILD = (
    f"INSERT OR IGNORE INTO builds ({BUILD_COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS))})"
)
_INSERT_MEASUREMENT = (
    f"INSERT OR IGNORE INTO measurements (build, number, {MEASUREMENT_COLUMNS}, samples) "
    f"VALUES ({', '.join('?' * 14)})"
)
_INSERT_TEXT = "INSERT OR IGNORE INTO texts VALUES (?, ?)"
_OLD_SAMPLES = f"""
SELECT rowid, samples FROM measurements WHERE stored > {THINNED_SAMPLES} AND build IN (
    SELECT id FROM builds WHERE target = ? AND how = '{RAN}' ORDER BY position DESC
    LIMIT -1 OFFSET {FULL_BENCHMARKS}
)
"""


class History:
    """The history of a project. Threads and processes may share it."""

    def __init__(
        self,
        path: Path,
        notify: Callable[[str], None] = warn_on_stderr,
        *,
        db: StateDb | None = None,
    ) -> None:
        self.path = path
        self._db = db or StateDb(path, notify, HISTORY)

    @classmethod
    def read_only(cls, path: Path, notify: Callable[[str], None] = warn_on_stderr) -> History:
        """Open a history for queries.

        A missing or unreadable file counts as empty.
        """
        return cls(path, notify, db=ReadOnlyStateDb(path, notify, HISTORY))

    @classmethod
    def readable(cls, path: Path) -> History:
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
        stage: str = "",
        run: str = "",
        project: str = "",
        machine_id: str = "",
        limit: int = -1,
    ) -> list[Build]:
        """Return builds, newest first.

        Builds of an unknown project belong to every project.
        """
        # `+`: the index of machines would lead through all builds of one
        machine = "+machine_id" if target or model else "machine_id"
        equal = {
            "target": target, "model": model, "stage": stage, "run": run, machine: machine_id,
        }  # fmt: skip
        conditions = {f"{column} = ?": value for column, value in equal.items() if value}
        return self._select(conditions, project, limit)

    def summaries(
        self, target: str, *, machine_id: str = "", limit: int = -1
    ) -> list[BuildSummary]:
        """Return the builds of a target in short, newest first."""
        where = "target = ? AND +machine_id = ?" if machine_id else "target = ?"
        rows = self._db.read(
            f"SELECT {_SUMMARY_COLUMNS} FROM builds WHERE {where} ORDER BY position DESC LIMIT ?",
            (target, *filter(None, [machine_id]), limit),
        )
        return [build for build in map(read_summary, rows) if build is not None]

    def last_reasons(self, model: str, limit: int) -> list[tuple[str, str, str]]:
        """Return run, stage and encoded stale reasons of a model's builds, newest first."""
        query = "SELECT run, stage, why FROM builds WHERE model = ? ORDER BY position DESC LIMIT ?"
        rows = self._db.read(query, (model, limit))
        return [(run, stage, why) for run, stage, why in rows]

    def last_passed(
        self, target: str, *, before: Build | None = None, project: str = ""
    ) -> Build | None:
        """Return the last passed build of a target, None without one."""
        conditions: dict[str, Any] = {"target = ?": target, "status = ?": "passed"}
        if before is not None:
            conditions["position < ?"] = before.position
        return next(iter(self._select(conditions, project, 1)), None)

    def find(self, prefix: str) -> Build:
        """Return the build with an id.

        Raises: UsageError: none or several begin with ``prefix``.
        """
        query = f"SELECT {BUILD_COLUMNS} FROM builds WHERE id >= ? AND id < ? LIMIT 2"
        rows = self._db.read(query, (prefix, prefix + "g")) if prefix else []
        found = [build for build in map(read_build, rows) if build is not None]
        if len(found) != 1:
            problem = (
                f"{'several builds have' if found else 'there is no build with'} the id {prefix}"
            )
            raise UsageError(problem, "`doit history MODEL` lists ids")
        return found[0]

    def measurements(self, build: Build, *, samples: bool = True) -> tuple[Measurement, ...]:
        """Return a benchmark's measurements, from its original build if restored."""
        column = "samples" if samples else "NULL"
        columns = f"{MEASUREMENT_COLUMNS}, {column}"
        query = f"SELECT {columns} FROM measurements WHERE build = ? ORDER BY number"
        rows = self._db.read(query, (build.id,))
        if not rows and build.how == RESTORED:
            original = self._db.read(
                "SELECT id FROM builds WHERE target = ? AND key = ? AND how = ? AND position < ? "
                "ORDER BY position DESC LIMIT 1",
                (build.target, build.key, RAN, build.position),
            )
            rows = self._db.read(query, original[0]) if original else []
        return tuple(one for one in map(read_measurement, rows) if one is not None)

    def environment(self, build: Build | BuildSummary) -> dict[str, str]:
        """Return the parts of a build's key for devices, libraries and variables."""
        return {name: str(value) for name, value in self._json(build.environment).items()}

    def manifest(self, build: Build) -> dict[str, Any]:
        """Return the resolved manifest of a build's model, {} if unknown."""
        return self._json(build.manifest)

    def machines(self) -> dict[str, set[str]]:
        """Return the ids of machines by name."""
        found: dict[str, set[str]] = {}
        for name, machine_id in self._db.read("SELECT DISTINCT machine, machine_id FROM builds"):
            if isinstance(name, str) and isinstance(machine_id, str):
                found.setdefault(name, set()).add(machine_id)
        return found

    def models(self, project: str = "") -> list[str]:
        """Return the recorded models, sorted."""
        where, values = ("project IN (?, '')", (project,)) if project else ("1", ())
        rows = self._db.read(f"SELECT DISTINCT model FROM builds WHERE {where}", values)
        return sorted(name for (name,) in rows if isinstance(name, str))

    def targets(self, stage: str) -> list[str]:
        """Return the recorded targets of a stage, sorted."""
        rows = self._db.read("SELECT DISTINCT target FROM builds WHERE stage = ?", (stage,))
        return sorted(name for (name,) in rows if isinstance(name, str))

    def projects(self) -> list[str]:
        """Return the known projects, sorted."""
        rows = self._db.read("SELECT DISTINCT project FROM builds WHERE project <> ''")
        return sorted(name for (name,) in rows if isinstance(name, str))

    def last_position(self, machine_id: str) -> float:
        """Return the last build's position on a machine, 0 without one."""
        query = "SELECT max(position) FROM builds WHERE machine_id = ?"
        found = self._db.read(query, (machine_id,))[0][0]
        return found if isinstance(found, float) else 0.0

    def add(
        self, build: Build, measurements: Sequence[Measurement] = (), texts: Iterable[str] = ()
    ) -> None:
        """Add a build after all others of its machine.

        ``texts`` are its environment and manifest. Raises: StageError: it cannot be written.
        """
        row = [value for name, value in build_row(build) if name != "position"]
        at = COLUMNS.index("position")
        row[at:at] = [build.position, build.machine_id]
        statements: list[Statement] = [(_INSERT_BUILD, row)]
        statements += [(_INSERT_TEXT, (digest_of(text), _packed(text))) for text in texts]
        self._db.write([*statements, *_measurement_statements(build.id, measurements)])

    def add_measurements(self, build: Build, measurements: Sequence[Measurement]) -> None:
        """Add a recorded benchmark's measurements, and thin old samples.

        Raises: StageError: they cannot be written.
        """
        statements = _measurement_statements(build.id, measurements)
        thinned = "UPDATE measurements SET samples = ?, stored = ? WHERE rowid = ?"
        for rowid, packed in self._db.read(_OLD_SAMPLES, (build.target,)):
            kept = evenly_spaced(unpack_samples(packed), THINNED_SAMPLES)
            statements.append((thinned, (pack_samples(kept), len(kept), rowid)))
        self._db.write(statements)

    def copy(self, builds: Sequence[Build], source: History) -> None:
        """Add builds of another history with their measurements and texts.

        Raises: StageError: they cannot be written, or not read there.
        """
        statements: list[Statement] = []
        digests = {d for build in builds for d in (build.environment, build.manifest) if d}
        for digest in digests:
            text = source.text(digest)
            if text:
                statements.append((_INSERT_TEXT, (digest, _packed(text))))
        for build in builds:
            statements.append((_COPY_BUILD, [value for _, value in build_row(build)]))
            if build.how == RAN and build.stage == BENCH:
                statements += _measurement_statements(build.id, source.measurements(build))
        self._db.write(statements)

    def known(self, ids: Sequence[str]) -> set[str]:
        """Return the recorded ones of some ids."""
        found: set[str] = set()
        for at in range(0, len(ids), _CHUNK):
            some = ids[at : at + _CHUNK]
            marks = ", ".join("?" * len(some))
            rows = self._db.read(f"SELECT id FROM builds WHERE id IN ({marks})", some)
            found.update(row[0] for row in rows)
        return found

    def text(self, digest: str) -> str:
        """Return the text of a digest, "" if unknown or damaged."""
        rows = self._db.read("SELECT content FROM texts WHERE digest = ?", (digest,))
        with suppress(zlib.error, TypeError, UnicodeDecodeError):
            packed = rows[0][0] if rows else b""
            text = zlib.decompressobj().decompress(packed, _MAX_TEXT_BYTES).decode()
            return text if digest_of(text) == digest else ""
        return ""

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._db.close()

    def _select(self, conditions: Mapping[str, Any], project: str, limit: int) -> list[Build]:
        where = {**conditions, **({"project IN (?, '')": project} if project else {})}
        rows = self._db.read(
            f"SELECT {BUILD_COLUMNS} FROM builds WHERE {' AND '.join(where) or '1'} "
            "ORDER BY position DESC LIMIT ?",
            (*where.values(), limit),
        )
        return [build for build in map(read_build, rows) if build is not None]

    def _json(self, digest: str) -> dict[str, Any]:
        found = read_object(self.text(digest)) if digest else None
        return found or {}


def history_file(state: Path) -> Path:
    """Return the file of the history: BUILDSYS_HISTORY or in the state folder."""
    return state.parent / (os.environ.get("BUILDSYS_HISTORY") or state / "history.db")


def digest_of(text: str) -> str:
    """Return the name of a text in the history."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _measurement_statements(build: str, measurements: Iterable[Measurement]) -> list[Statement]:
    return [
        (_INSERT_MEASUREMENT, (build, number, *measurement_row(one)))
        for number, one in enumerate(measurements)
    ]


def _packed(text: str) -> bytes:
    return zlib.compress(text.encode())
