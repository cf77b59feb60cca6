"""The history of builds and benchmarks: one SQLite file per project.

It cannot be rebuilt, unlike the build state. It is therefore a separate file, no build depends on
it, and a file of a newer version is never written.
"""

# ruff: noqa: S608 - all names in the statements are our own

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from buildsys.errors import UsageError
from buildsys.store.state_db import ReadOnlyStateDb, Row, Schema, StateDb, Statement, warn_on_stderr

RAN, RESTORED = "ran", "restored"
HOST, GPU = "host", "gpu"  # clocks
_SHOWN_ID = 8  # characters
KEEP_SAMPLES = 4096  # per measurement, evenly spaced over its duration
FULL_BENCHMARKS = 20  # per target; older ones keep THINNED_SAMPLES per measurement
THINNED_SAMPLES = 256
T = TypeVar("T")
_CHUNK = 500  # parameters of one query
_COMPARED_DEVICES = ("cpu.model", "cpu.cores", "gpu.name", "gpu.compute_capability")

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


@dataclass(frozen=True)
class Build:
    """A finished run of one target."""

    id: str
    run: str  # the targets of one doit process share it
    project: str  # remote of git and folder in it: "host/acme/models//vision"; "" if unknown
    target: str
    model: str
    stage: str
    variant: str
    key: str
    how: str  # RAN | RESTORED
    status: str  # passed | unavailable | failed | error | noisy
    started: str  # ISO 8601, UTC
    position: float  # order on a machine: seconds since 1970, even if the clock is set back
    seconds: float  # of the stage, when it ran
    reason: str = ""  # of a failure
    why: str = ""  # stale reasons, encoded by ``execution.stale_reasons``
    revision: str = ""  # commit; "" outside of git
    dirty: bool | None = None  # None: unknown
    machine: str = ""
    machine_id: str = ""
    environment: str = ""  # digest of a text: device:, tool: and env: parts of the key
    manifest: str = ""  # digest of a text: the resolved manifest of the model
    outputs: Mapping[str, str] = field(default_factory=dict)  # role -> content digest
    figures: Mapping[str, Any] = field(default_factory=dict)  # see ``figures.build_figures``

    @property
    def short_id(self) -> str:
        """The beginning of the id, as shown."""
        return self.id[:_SHOWN_ID]


@dataclass(frozen=True)
class Measurement:
    """A contender of a benchmark in one shape case, by one clock."""

    case: str
    contender: str
    clock: str  # HOST | GPU
    count: int  # samples measured; fewer are kept
    p50_ms: float
    interval_ms: tuple[float, float] | None = None  # of the median
    dims: Mapping[str, int] = field(default_factory=dict)
    batch: int | None = None
    figures: Mapping[str, float] = field(default_factory=dict)  # p99_ms, throughput_per_s, …
    samples_ms: Sequence[float] = ()  # in the order measured


_COLUMNS = tuple(one.name for one in fields(Build))
BUILD_COLUMNS = ", ".join(_COLUMNS)
_JSON_COLUMNS = ("outputs", "figures")
_NUMBERS = ("position", "seconds")
_NOT_TEXT = (*_JSON_COLUMNS, *_NUMBERS, "dirty")
_AFTER_THE_LAST = (
    "max(?, coalesce((SELECT max(position) FROM builds WHERE machine_id = ?), 0) + 0.001)"
)
_INSERT_BUILD = (
    f"INSERT OR IGNORE INTO builds ({BUILD_COLUMNS}) "
    f"VALUES ({', '.join(_AFTER_THE_LAST if c == 'position' else '?' for c in _COLUMNS)})"
)
_COPY_BUILD = (
    f"INSERT OR IGNORE INTO builds ({BUILD_COLUMNS}) VALUES ({', '.join('?' * len(_COLUMNS))})"
)
_MEASUREMENT = (
    "case_name, contender, clock, dims, batch, count, p50_ms, low_ms, high_ms, figures, stored"
)
_INSERT_MEASUREMENT = (
    f"INSERT OR IGNORE INTO measurements (build, number, {_MEASUREMENT}, samples) "
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
        """Open a history for queries. A missing or unreadable file counts as empty."""
        return cls(path, notify, db=ReadOnlyStateDb(path, notify, HISTORY))

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
        equal = {
            "target": target, "model": model, "stage": stage, "run": run, "machine_id": machine_id,
        }  # fmt: skip
        conditions = {f"{column} = ?": value for column, value in equal.items() if value}
        return self._select(conditions, project, limit)

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
        query = f"SELECT {_MEASUREMENT}, {column} FROM measurements WHERE build = ? ORDER BY number"
        rows = self._db.read(query, (build.id,))
        if not rows and build.how == RESTORED:
            original = self._db.read(
                "SELECT id FROM builds WHERE target = ? AND key = ? AND how = ? AND position < ? "
                "ORDER BY position DESC LIMIT 1",
                (build.target, build.key, RAN, build.position),
            )
            rows = self._db.read(query, original[0]) if original else []
        return tuple(one for one in map(read_measurement, rows) if one is not None)

    def environment(self, build: Build) -> dict[str, str]:
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
        row = [value for name, value in _row(build) if name != "position"]
        at = _COLUMNS.index("position")
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
            kept = evenly_spaced(_unpacked_samples(packed), THINNED_SAMPLES)
            statements.append((thinned, (_packed_samples(kept), len(kept), rowid)))
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
            statements.append((_COPY_BUILD, [value for _, value in _row(build)]))
            if build.how == RAN and build.stage == "bench":
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
            text = zlib.decompress(rows[0][0]).decode() if rows else ""
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
        found = _object(self.text(digest)) if digest else None
        return found or {}


def history_file(state: Path) -> Path:
    """Return the file of the history: BUILDSYS_HISTORY or in the state folder."""
    return state.parent / (os.environ.get("BUILDSYS_HISTORY") or state / "history.db")


def digest_of(text: str) -> str:
    """Return the name of a text in the history."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def machine_differences(first: Mapping[str, str], second: Mapping[str, str]) -> tuple[str, ...]:
    """Return obstacles to comparing figures of two environments.

    Only hardware counts. Drivers and libraries are causes of a change, not obstacles.
    """
    found = []
    for name in _COMPARED_DEVICES:
        one, other = first.get(f"device:{name}"), second.get(f"device:{name}")
        if one is not None and other is not None and one != other:
            found.append(f"{name} is {one} and {other}")
    return tuple(found)


def evenly_spaced(samples: Sequence[T], most: int) -> Sequence[T]:
    """Return at most ``most`` samples, evenly spread and in order."""
    count = len(samples)
    if count <= most:
        return samples
    return [samples[(2 * n + 1) * count // (2 * most)] for n in range(most)]


def read_build(row: Row) -> Build | None:
    """Return the build in a row, None if the row is damaged."""
    found: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
    for name in _JSON_COLUMNS:
        found[name] = _object(found[name])
    dirty = found.pop("dirty")
    numbers = (found[name] for name in _NUMBERS)
    texts = (found[name] for name in _COLUMNS if name in found and name not in _NOT_TEXT)
    if (
        any(found[name] is None for name in _JSON_COLUMNS)
        or not all(isinstance(number, float) and math.isfinite(number) for number in numbers)
        or not all(isinstance(text, str) for text in texts)
        or dirty not in (None, 0, 1)
        or not all(isinstance(digest, str) for digest in found["outputs"].values())
    ):
        return None
    return Build(**found, dirty=None if dirty is None else bool(dirty))


def read_measurement(row: Row) -> Measurement | None:
    """Return the measurement in a row, None if the row is damaged."""
    case, contender, clock, dims, batch, count, p50_ms, low_ms, high_ms, figures, _, packed = row
    own_dims, own_figures = _object(dims), _object(figures)
    texts = isinstance(case, str) and isinstance(contender, str) and clock in (HOST, GPU)
    if own_dims is None or own_figures is None or not texts or not isinstance(count, int):
        return None
    if not isinstance(p50_ms, float) or not math.isfinite(p50_ms):
        return None
    has_interval = isinstance(low_ms, float) and isinstance(high_ms, float)
    return Measurement(
        case,
        contender,
        clock,
        count,
        p50_ms,
        (low_ms, high_ms) if has_interval else None,
        own_dims,
        batch if isinstance(batch, int) else None,
        own_figures,
        _unpacked_samples(packed),
    )


def _row(build: Build) -> list[tuple[str, Any]]:
    """Return column and value of a build."""
    own = {name: getattr(build, name) for name in _COLUMNS}
    own |= {name: json.dumps(own[name], separators=(",", ":")) for name in _JSON_COLUMNS}
    own |= {name: float(own[name]) for name in _NUMBERS}
    return list(own.items())


def _measurement_statements(build: str, measurements: Iterable[Measurement]) -> list[Statement]:
    statements: list[Statement] = []
    for number, one in enumerate(measurements):
        low_ms, high_ms = one.interval_ms or (None, None)
        kept = evenly_spaced([s for s in one.samples_ms if math.isfinite(s)], KEEP_SAMPLES)
        values = (
            build, number, one.case, one.contender, one.clock, json.dumps(dict(one.dims)),
            one.batch, one.count, one.p50_ms, low_ms, high_ms, json.dumps(dict(one.figures)),
            len(kept), _packed_samples(kept),
        )  # fmt: skip
        statements.append((_INSERT_MEASUREMENT, values))
    return statements


def _packed(text: str) -> bytes:
    return zlib.compress(text.encode())


def _packed_samples(samples: Sequence[float]) -> bytes:
    """Return samples as compressed little-endian float32."""
    values = array("f", samples)
    if sys.byteorder == "big":
        values.byteswap()
    return zlib.compress(values.tobytes())


def _unpacked_samples(packed: Any) -> Sequence[float]:
    """Return the finite samples in a blob, () if it is damaged."""
    values = array("f")
    try:
        unpacker = zlib.decompressobj()
        values.frombytes(unpacker.decompress(packed or b"", values.itemsize * KEEP_SAMPLES))
    except (zlib.error, TypeError, ValueError):
        return ()
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(value for value in values if math.isfinite(value))


def _object(text: object) -> dict[str, Any] | None:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
