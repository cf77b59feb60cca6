"""The ledger of action records and runs, one transaction per action."""

# ruff: noqa: S608 - all names in the statements are our own

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from buildsys.store.state_db import StateDb, Statement

PASSED, UNAVAILABLE, FAILED = "passed", "unavailable", "failed"
NOISY = "noisy"  # a measurement that nothing may rely on: recorded, but not stored or restored
ACCEPTED = "accepted"  # a build that its gate rejects, made the baseline by a person
RESTORED = "restored"  # in the history: the outputs came from the store
KEEP_RECORDS = 20  # per target: enough to return to earlier states, few enough to stay fast
KEEP_HISTORY = 100
_READS_NAME = "reads/1:"
MAX_SECONDS = 1e10
_DAMAGED = (TypeError, ValueError, RecursionError)
_to_json = partial(json.dumps, separators=(",", ":"))

_RECORD = "target, key, parts, outputs, status, started, seconds, reason, hint, figures, log"
_SELECT_RECORD = f"SELECT {_RECORD} FROM records WHERE target = ?"
_SELECT_OUTPUTS = (
    "SELECT status, outputs FROM records WHERE target = ? AND key = ?"
    " AND target NOT IN (SELECT target FROM forgotten)"
)
_INSERT_RECORD = (
    f"INSERT OR REPLACE INTO records ({_RECORD}, seq) VALUES ({'?, ' * 11}last_insert_rowid())"
)
_ENTRY = "target, key, status, started, seconds, reason, why"
_SELECT_HISTORY = f"SELECT {_ENTRY} FROM history WHERE target = ? ORDER BY seq DESC LIMIT ?"
_INSERT_HISTORY = f"INSERT INTO history ({_ENTRY}) VALUES (?, ?, ?, ?, ?, ?, ?)"
# in the table of facts about source files: losing them costs a rebuild
_SELECT_READS = "SELECT imports FROM source_imports WHERE digest = ?"
_INSERT_READS = "INSERT OR REPLACE INTO source_imports VALUES (?, ?)"
_DELETE_READS = "DELETE FROM source_imports WHERE digest = ?"
_CLAIM = "INSERT OR REPLACE INTO owned VALUES (?, ?)"
_PRUNE = """
DELETE FROM {0} WHERE target = ?
AND seq <= (SELECT seq FROM {0} WHERE target = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)
"""


class OutputFile(NamedTuple):
    """A published output."""

    digest: str
    size: int


# path relative to the build folder -> file, None if it was not produced
Outputs = Mapping[str, "OutputFile | None"]


@dataclass(frozen=True)
class ActionRecord:
    """The result of an action: key parts, outputs, figures."""

    target: str
    key: str
    parts: Mapping[str, str]
    outputs: Outputs
    status: str  # passed | unavailable | noisy | accepted
    started: str  # ISO, UTC
    seconds: float
    reason: str = ""
    hint: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""
    origin: str = ""  # "shared" if it came from a shared cache
    signature: Mapping[str, Any] | None = None  # envelope of the machine that shared it

    @property
    def files(self) -> dict[str, OutputFile]:
        """The existing outputs."""
        return {path: output for path, output in self.outputs.items() if output is not None}


class HistoryEntry(NamedTuple):
    """A run in the history of a target."""

    target: str
    key: str
    status: str
    started: str
    seconds: float
    reason: str
    why: str = ""  # the stale reasons, encoded by ``execution.stale_reasons``


class Ledger:
    """The records of a project. Threads and processes may share it."""

    def __init__(self, db: StateDb) -> None:
        self._db = db

    def lookup(self, target: str, key: str = "") -> ActionRecord | None:
        """Look up the record of a target under this key, or the latest."""
        return next(iter(self.records(target, key, limit=1)), None)

    def records(self, target: str, key: str = "", *, limit: int = -1) -> list[ActionRecord]:
        """List the readable records of a target, newest first."""
        where, values = (" AND key = ?", (target, key)) if key else ("", (target,))
        query = f"{_SELECT_RECORD}{where} ORDER BY seq DESC LIMIT ?"
        records = []
        for row in self._db.read(query, (*values, limit)):
            _, own_key, parts, outputs, *ended, figures, log = row
            with suppress(*_DAMAGED):
                published = _decode_outputs(outputs)
                _check_seconds(ended[2])
                facts = own_key, _decode(parts), published, *ended, _decode(figures), log
                records.append(ActionRecord(target, *facts))
        return records

    def outputs(self, target: str, key: str) -> tuple[str, Outputs] | None:
        """Look up only status and outputs of a record that counts, faster than ``lookup``."""
        for status, outputs in self._db.read(_SELECT_OUTPUTS, (target, key)):
            with suppress(*_DAMAGED):
                return status, _decode_outputs(outputs)
        return None

    def reads(self, target: str) -> dict[str, str]:
        """Look up the reads outside a target's key: part -> file:line."""
        for (reads,) in self._db.read(_SELECT_READS, (_READS_NAME + target,)):
            with suppress(*_DAMAGED):
                return _decode(reads)
        return {}

    def add(
        self,
        record: ActionRecord,
        *,
        why: str = "",
        restored: bool = False,
        reads: Mapping[str, str] | None = None,
    ) -> None:
        """Add a record; its outputs become the only files of the target.

        ``reads`` are what the run read outside its key.
        """
        row = (
            record.target, record.key, _to_json(record.parts), _to_json(record.outputs),
            record.status, record.started, record.seconds, record.reason, record.hint,
            _to_json(record.figures), record.log,
        )  # fmt: skip
        status = RESTORED if restored else record.status
        entry = HistoryEntry(
            record.target, record.key, status, record.started, record.seconds, record.reason, why
        )
        record_it = [
            ("DELETE FROM forgotten WHERE target = ?", (record.target,)),
            (_INSERT_RECORD, row),  # with the number of the entry before it
            (_DELETE_READS, (_READS_NAME + record.target,)),
        ]
        if reads:
            record_it.append((_INSERT_READS, (_READS_NAME + record.target, _to_json(dict(reads)))))
        self.add_run(entry, record.files, record_it)

    def add_run(
        self,
        entry: HistoryEntry,
        files: Iterable[str] | None = None,
        also: Iterable[Statement] = (),
    ) -> None:
        """Add a run; its ``files`` become the only ones of the target."""
        target = entry.target
        statements: list[Statement] = [(_INSERT_HISTORY, entry), *also]
        if files is not None:
            statements.append(("DELETE FROM owned WHERE target = ?", (target,)))
            statements += [(_CLAIM, (path, target)) for path in files]
        for table, most in (("records", KEEP_RECORDS), ("history", KEEP_HISTORY)):
            statements.append((_PRUNE.format(table), (target, target, most)))
        self._db.write(statements)

    def claim(self, target: str, paths: Iterable[str]) -> None:
        """Record files before their publication, in case of a kill midway."""
        self._db.write([(_CLAIM, (path, target)) for path in paths])

    def owned(self, target: str) -> set[str]:
        """List the files of a target in the build folder."""
        rows = self._db.read("SELECT path FROM owned WHERE target = ?", (target,))
        return {path for (path,) in rows if isinstance(path, str) and _is_inside(path)}

    def forget(self, target: str, *, keep_records: bool = False) -> None:
        """Make a target stale and drop its records. Its files and history stay.

        With ``keep_records`` they only no longer count: a gate keeps its baseline.
        """
        drop = ("DELETE FROM records WHERE target = ?", (target,))
        self._db.write([
            *([] if keep_records else [drop]),
            ("DELETE FROM settled_models", ()),
            ("INSERT OR REPLACE INTO forgotten VALUES (?)", (target,)),
        ])  # fmt: skip

    def is_forgotten(self, target: str) -> bool:
        """Check for a target not built since it was forgotten."""
        return bool(self._db.read("SELECT 1 FROM forgotten WHERE target = ?", (target,)))

    def has_records(self, target: str) -> bool:
        """Check for any record of a target, readable or not."""
        return bool(self._db.read("SELECT 1 FROM records WHERE target = ? LIMIT 1", (target,)))

    def history(self, target: str, limit: int = 10) -> list[HistoryEntry]:
        """List the last runs of a target, newest first."""
        entries = []
        for row in self._db.read(_SELECT_HISTORY, (target, limit)):
            with suppress(ValueError):
                _check_seconds(row[4])
                entries.append(HistoryEntry(*row))
        return entries


def utc_now() -> str:
    """Return the current time in the format of records."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _check_seconds(value: object) -> None:
    """Check the duration in a row. Raises: ValueError: it is damaged."""
    if not isinstance(value, int | float) or not 0 <= value < MAX_SECONDS:
        raise ValueError("not a duration")


def _decode_outputs(text: str) -> dict[str, OutputFile | None]:
    """Decode published outputs.

    Raises: TypeError, ValueError: they are damaged or outside the build folder.
    """
    recorded = _decode(text)
    if not all(map(_is_inside, recorded)):  # recorded files may be deleted
        raise ValueError("outside the build folder")
    return {path: file and OutputFile(*file) for path, file in recorded.items()}


def _decode(text: str) -> dict[str, Any]:
    """Decode a JSON object. Raises: TypeError, ValueError, RecursionError: it is none."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def _is_inside(path: str) -> bool:
    """Return True for a path inside the build folder."""
    return not path.startswith("/") and ".." not in path.split("/") and "\0" not in path
