"""What was built, from what, and with which outcome: one record per target and key, committed per action."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from buildsys.store.state_db import Row, StateDb, Statement

PASSED, UNAVAILABLE, FAILED = "passed", "unavailable", "failed"
RESTORED = "restored"  # in the history: taken from the store
KEEP_RECORDS = 20  # per target: enough to find one's way back, few enough to stay fast
KEEP_HISTORY = 100
_SUMMARY_ITEMS = 16  # longer lists (raw samples) stay in the result file

_COLUMNS = "target, key, parts, outputs, status, started, seconds, reason, hint, figures, log"
_LOOKUP = f"SELECT {_COLUMNS} FROM records WHERE target = ? AND key = ?"  # noqa: S608 - our own column names
_LATEST = f"SELECT {_COLUMNS} FROM records WHERE target = ? ORDER BY seq DESC LIMIT 1"  # noqa: S608 - as above
_RECORDS = f"SELECT {_COLUMNS} FROM records WHERE target = ? ORDER BY seq DESC"  # noqa: S608 - as above
_INSERT = (
    f"INSERT OR REPLACE INTO records ({_COLUMNS}, seq) VALUES ({'?, ' * 11}last_insert_rowid())"  # noqa: S608
)
_RUN = "target, key, status, started, seconds, reason, why"
_RUNS = f"SELECT {_RUN} FROM history WHERE target = ? ORDER BY seq DESC LIMIT ?"  # noqa: S608 - as above
_NOTE = f"INSERT INTO history ({_RUN}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - as above
_CLAIM = "INSERT OR REPLACE INTO owned VALUES (?, ?)"
_PRUNE = """
DELETE FROM {0} WHERE target = ?
AND seq <= (SELECT seq FROM {0} WHERE target = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)
"""


class OutputFile(NamedTuple):
    """An output as it was published."""

    digest: str
    size: int


Outputs = Mapping[
    str, "OutputFile | None"
]  # path relative to the build folder; None: was not produced


@dataclass(frozen=True)
class Record:
    """An action record: the parts of a key, field by field, and what came out."""

    target: str
    key: str
    parts: Mapping[str, str]
    outputs: Outputs
    status: str  # passed | unavailable
    started: str  # ISO, UTC
    seconds: float
    reason: str = ""
    hint: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""

    @property
    def files(self) -> dict[str, OutputFile]:
        """The outputs that were produced."""
        return {path: output for path, output in self.outputs.items() if output is not None}


class Run(NamedTuple):
    """One line of a target's history."""

    target: str
    key: str
    status: str
    started: str
    seconds: float
    reason: str
    why: str = ""  # the reasons for which it was made, as ``graph.explain`` writes them


class Ledger:
    """The records of a project. Safe to use from threads and from several processes at once."""

    def __init__(self, db: StateDb) -> None:
        self._db = db

    def lookup(self, target: str, key: str) -> Record | None:
        """Return the record of a target under exactly this key."""
        rows = self._db.read(_LOOKUP, (target, key))
        return _record(rows[0]) if rows else None

    def latest(self, target: str) -> Record | None:
        """Return the record that was written last, whatever its key."""
        rows = self._db.read(_LATEST, (target,))
        return _record(rows[0]) if rows else None

    def records(self, target: str) -> list[Record]:
        """Return all records of a target that can be read, newest first."""
        found = (_record(row) for row in self._db.read(_RECORDS, (target,)))
        return [record for record in found if record is not None]

    def outputs(self, target: str, key: str) -> tuple[str, Outputs] | None:
        """Return status and outputs of a record: all that judging it takes, without reading the rest."""
        rows = self._db.read(
            "SELECT status, outputs FROM records WHERE target = ? AND key = ?", (target, key)
        )
        found = _outputs(rows[0][1]) if rows else None
        return None if found is None else (rows[0][0], found)

    def record(self, record: Record, *, why: str = "", restored: bool = False) -> None:
        """Store a finished action and why it ran; its outputs are then exactly the files that the target owns."""
        row = (
            record.target, record.key, _to_json(record.parts), _to_json(record.outputs), record.status, record.started,
            record.seconds, record.reason, record.hint, _to_json(record.figures), record.log,
        )  # fmt: skip
        status = RESTORED if restored else record.status
        self._db.write([
            _history_row(Run(record.target, record.key, status, record.started, record.seconds, record.reason, why)),
            ("DELETE FROM forgotten WHERE target = ?", (record.target,)),
            (_INSERT, row),
            *_ownership(record.target, record.files),
            *_pruned(record.target),
        ])  # fmt: skip

    def fail(self, run: Run, files: Iterable[str]) -> None:
        """Note in the history that a check failed; ``files`` are what it left in the build folder."""
        self._db.write([_history_row(run), *_ownership(run.target, files), *_pruned(run.target)])

    def note(self, run: Run) -> None:
        """Note in the history a run that published nothing."""
        self._db.write([_history_row(run), *_pruned(run.target)])

    def claim(self, target: str, paths: Iterable[str]) -> None:
        """Say which files a target is about to put in place, so that a kill in the middle loses track of none."""
        self._db.write([(_CLAIM, (path, target)) for path in paths])

    def owned(self, target: str) -> set[str]:
        """Return the files in the build folder that a target has put there."""
        rows = self._db.read("SELECT path FROM owned WHERE target = ?", (target,))
        return {path for (path,) in rows if isinstance(path, str) and _is_inside(path)}

    def forget(self, target: str) -> None:
        """Drop all records of a target: it is stale, and is built next time. Its files and its history stay."""
        self._db.write([
            ("DELETE FROM records WHERE target = ?", (target,)),
            ("INSERT OR REPLACE INTO forgotten VALUES (?)", (target,)),
        ])  # fmt: skip

    def is_forgotten(self, target: str) -> bool:
        """Return whether a target was forgotten and not built since."""
        return bool(self._db.read("SELECT 1 FROM forgotten WHERE target = ?", (target,)))

    def has_records(self, target: str) -> bool:
        """Return whether anything is recorded of a target, be it readable or not."""
        return bool(self._db.read("SELECT 1 FROM records WHERE target = ? LIMIT 1", (target,)))

    def history(self, target: str, limit: int = 10) -> list[Run]:
        """Return the last runs of a target, newest first."""
        return [Run(*row) for row in self._db.read(_RUNS, (target, limit))]


def utc_now() -> str:
    """Return the moment as records hold it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def summary(figures: Any) -> Any:
    """Return figures without long lists, for the records: the result file has them whole."""
    if isinstance(figures, Mapping):
        kept = {name: value for name, value in figures.items() if not _is_long(value)}
        return {name: summary(value) for name, value in kept.items()}
    return [summary(item) for item in figures] if isinstance(figures, (list, tuple)) else figures


class ImportMemo:
    """The import statements of source files, by the digest of the file."""

    def __init__(self, db: StateDb) -> None:
        self._db = db
        self._known: dict[str, str] = {}

    def get(self, digest: str) -> str | None:
        """Return what was stored for a digest."""
        if digest not in self._known:
            rows = self._db.read("SELECT imports FROM source_imports WHERE digest = ?", (digest,))
            if not rows:
                return None
            self._known[digest] = rows[0][0]
        return self._known[digest]

    def set(self, digest: str, imports: str) -> None:
        """Store the imports of a file."""
        self._known[digest] = imports
        self._db.write([("INSERT OR REPLACE INTO source_imports VALUES (?, ?)", (digest, imports))])


def _is_long(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > _SUMMARY_ITEMS


def _history_row(run: Run) -> Statement:
    return _NOTE, run


def _ownership(target: str, paths: Iterable[str]) -> list[Statement]:
    claims: list[Statement] = [(_CLAIM, (path, target)) for path in paths]
    return [("DELETE FROM owned WHERE target = ?", (target,)), *claims]


def _pruned(target: str) -> list[Statement]:
    kept = {"records": KEEP_RECORDS, "history": KEEP_HISTORY}
    return [(_PRUNE.format(table), (target, target, count)) for table, count in kept.items()]


def _record(row: Row) -> Record | None:
    """Return a row as a record; one that cannot be read counts as absent, so the target is made again."""
    target, key, parts, outputs, status, started, seconds, reason, hint, figures, log = row
    published = _outputs(outputs)
    if published is None:
        return None
    try:
        return Record(target, key, json.loads(parts), published, status, started, seconds, reason, hint,
                      json.loads(figures), log)  # fmt: skip
    except (TypeError, ValueError):
        return None


def _outputs(text: str) -> dict[str, OutputFile | None] | None:
    """Return what was published; None where that cannot be read, or would reach out of the build folder."""
    try:
        found = {
            path: None if output is None else OutputFile(*output)
            for path, output in json.loads(text).items()
        }
    except (AttributeError, TypeError, ValueError):
        return None
    return found if all(map(_is_inside, found)) else None


def _is_inside(path: str) -> bool:
    """Tell whether a path stays in the folder that it is relative to: what is recorded may be deleted one day."""
    return not path.startswith("/") and ".." not in path.split("/") and "\0" not in path


def _to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
