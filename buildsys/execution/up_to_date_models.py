"""Cache of models known to be up to date.

Planning a model, building the key of each target and reading its record takes about 1.5 ms. For a
model that an earlier run found up to date, one comparison is enough: a token over everything that
the finding depends on, that is the resolved manifest, our own code, libraries, devices, the user's
sources, the records, and the stamp of every input and output. With another token the model is
checked in full.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.errors import StageError
from buildsys.execution.action_key import KeyBuilder, own_code
from buildsys.execution.freshness import FreshnessChecker, is_strict
from buildsys.execution.recorded_reads import Reads
from buildsys.plan.action import Action, Needs, ToolchainRef
from buildsys.store.file_digests import boot_id
from buildsys.store.ledger import Ledger
from buildsys.store.state_db import Row, StateDb, Statement
from buildsys.system.files import SETTLE_NS

_FEW = 100  # models are read by name up to this number, and all at once above it

# fields covered by the manifest, by the stamps of files and by our own code
COVERED_ELSEWHERE = frozenset((
    "target", "stage", "model", "variant", "options", "inputs", "outputs", "after", "order", "code",
    "advisory", "required", "measures", "exclusive", "alone_on_gpu", "timeout_s", "doc",
    "strict_reads", "baseline",  # the record of a finished gate says which it was
))  # fmt: skip
_ENVIRONMENT = [field.name for field in fields(Action) if field.name not in COVERED_ELSEWHERE]

_MODELS = "SELECT model, token, about, files FROM settled_models WHERE valid_in = ?"
_RECORDS = """
SELECT kept.model, kept.target, kept.key, records.status, records.outputs
FROM settled_targets AS kept
LEFT JOIN records ON records.target = kept.target AND records.key = kept.key
"""
_RECORD = "SELECT target, key, status, outputs FROM records WHERE target = ? AND key = ?"
_KEEP_MODEL = "INSERT OR REPLACE INTO settled_models VALUES (?, ?, ?, ?, ?)"
_KEEP_TARGET = "INSERT INTO settled_targets VALUES (?, ?, ?)"
_DROP_TARGETS = "DELETE FROM settled_targets WHERE model = ?"


Statuses = dict[str, str]  # target -> recorded status: passed, unavailable or noisy


class PlannedModel(NamedTuple):
    """A model to check in full."""

    text: str  # the resolved manifest
    actions: Sequence[Action]


class UpToDateModels:
    """The up-to-date models of a project, remembered until the next boot."""

    def __init__(
        self, build: Path, db: StateDb, keys: KeyBuilder, checker: FreshnessChecker
    ) -> None:
        self._build = f"{build}{os.sep}"
        self._db = db
        self._keys = keys
        self._checker = checker
        # what else decides whether a model is up to date
        self._settings = repr(checker.trust)
        self._ledger = Ledger(db)

    def find(self, models: Mapping[str, str]) -> dict[str, Statuses]:
        """Find the targets of unchanged models among ``models`` (name -> resolved manifest).

        Raises: StageError: the state or a source cannot be read.
        """
        now = _Moment(self._build, self._keys, self._settings)
        records: dict[str, list[Row]] = {}
        for model, *record in self._rows(_RECORDS, " WHERE kept.model", models):
            records.setdefault(model, []).append(tuple(record))
        up_to_date: dict[str, Statuses] = {}
        rows = self._rows(_MODELS, " AND model", models, now.valid_in)
        for model, token, environments, files in rows:
            if model not in models:
                continue
            model_records = records.get(model, [])
            # damaged rows, or a source that cannot be read, which the full check reports
            with suppress(
                ValueError, TypeError, AttributeError, LookupError, RecursionError, StageError
            ):
                state = now.state(environments, files.split("\n"))
                if _digest((models[model], state.digest, sorted(model_records, key=repr))) == token:
                    up_to_date[model] = {row[0]: row[2] for row in model_records}
        return up_to_date

    def check(self, models: Mapping[str, PlannedModel]) -> dict[str, Statuses]:
        """Check models in full; return the targets of those up to date.

        Everything that a finding depends on is compared before and after the check; models that
        changed meanwhile are left out. The others are kept for ``find``.
        Raises: StageError: the state or a source cannot be read.
        """
        begun_ns, before = time.time_ns(), _Moment(self._build, self._keys, self._settings)
        planned = []
        for name, (_, actions) in models.items():
            environments = self._environments(actions)
            refs = (r for a in actions for r in (*a.inputs.values(), *a.outputs.values()))
            files = sorted({ref.path for ref in refs})
            planned.append((name, environments, files, before.state(environments, files)))
        checked = {name: self._check(model.actions) for name, model in models.items()}
        now = _Moment(self._build, self._keys, self._settings)
        statuses: dict[str, Statuses] = {}
        statements: list[Statement] = []
        for name, environments, files, seen in planned:
            keys = checked[name]
            same = self._environments(models[name].actions) == environments
            if not keys or not same or now.state(environments, files) != seen:
                continue
            records = [row for entry in keys.items() for row in self._db.read(_RECORD, entry)]
            if len(records) < len(keys):  # forgotten meanwhile
                continue
            statuses[name] = {row[0]: row[2] for row in records}
            recorded = (path for row in records for path in json.loads(row[3]))
            files = sorted({*files, *recorded})
            state = now.state(environments, files)
            # a second write within the resolution of file times would not show
            if state.newest_ns + SETTLE_NS < begun_ns:
                token = _digest((models[name].text, state.digest, sorted(records, key=repr)))
                row = (name, now.valid_in, token, environments, "\n".join(files))
                statements += [(_KEEP_MODEL, row), (_DROP_TARGETS, (name,))]
                statements += [(_KEEP_TARGET, (name, *item)) for item in keys.items()]
        if statements:
            with suppress(StageError):  # in a read-only state every run checks in full
                self._db.write(statements)
        return statuses

    def _environments(self, actions: Iterable[Action]) -> str:
        """Encode the environments of actions, with the reads of their last runs."""
        lines = (environment_of(action, self._ledger.reads(action.target)) for action in actions)
        return "\n".join(sorted(set(lines)))

    def _check(self, actions: Sequence[Action]) -> dict[str, str]:
        """Look up the keys of a model's targets, none if one is stale."""
        keys: dict[str, str] = {}
        for action in actions:
            key = None
            with suppress(StageError):  # an unreadable file, which the run will report
                key = self._checker.up_to_date_key(action)
            # doit runs a target without its files, though an unavailable one may be up to date
            paths = (self._build + ref.path for ref in action.outputs.values() if not ref.optional)
            if key is None or not all(map(os.path.exists, paths)):
                return {}
            keys[action.target] = key
        return keys

    def _rows(self, query: str, column: str, models: Mapping[str, str], *values: str) -> list[Row]:
        if len(models) > _FEW:
            return self._db.read(query, values)
        names = f"{column} IN ({', '.join('?' * len(models))})"
        return self._db.read(query + names, (*values, *models))


class _State(NamedTuple):
    """The state of files and environments."""

    digest: str
    newest_ns: int  # time of the last write to one of the files


class _Moment:
    """The state of the machine at one moment, shared by all models."""

    def __init__(self, build: str, keys: KeyBuilder, settings: str) -> None:
        self._build = build
        self._keys = keys
        self._known: dict[str, str] = {}  # environment -> digest
        code = [(path, _plain_stamp(path)) for path in sorted(own_code())]
        self._newest_ns = max(max(stamp[:2]) for _, stamp in code if stamp)
        # the boot of the machine and the state common to all models
        self.valid_in = f"{boot_id()} {_digest((code, is_strict(), settings))}"

    def state(self, environments: str, files: Iterable[str]) -> _State:
        """Digest a model's environments and files."""
        stamps = [_plain_stamp(self._build + name) for name in files]
        newest_ns = max((max(stamp[:2]) for stamp in stamps if stamp), default=0)
        lines = environments.split("\n")
        for line in lines:
            if line not in self._known:
                parts = self._keys.build(*action_in(line)).parts
                self._known[line] = _digest(sorted(parts.items()))
        digest = _digest((self.valid_in, [self._known[line] for line in lines], stamps))
        return _State(digest, max(newest_ns, self._newest_ns))


def environment_of(action: Action, recorded: Reads | None = None) -> str:
    """Encode the environment of an action as one line of JSON.

    ``recorded`` is what its last run read outside its key.
    """
    used = {name: getattr(action, name) for name in _ENVIRONMENT}
    return json.dumps({**used, **({"recorded": recorded} if recorded else {})}, sort_keys=True)


def action_in(line: str) -> tuple[Action, Reads]:
    """Decode an action with only its environment and recorded reads.

    Its key is the state of the environment.
    """
    used: dict[str, Any] = {name: _as_tuple(value) for name, value in json.loads(line).items()}
    recorded: Reads = used.pop("recorded", {})
    if used["toolchain"] is not None:
        name, python, env = used["toolchain"]
        used["toolchain"] = ToolchainRef(name, python, tuple((key, value) for key, value in env))
    used["needs"] = Needs._make(map(_as_tuple, used["needs"]))
    used["probes"] = tuple(map(tuple, used["probes"]))
    action = Action(
        target="", stage="", model="", variant="", options={}, inputs={}, outputs={}, **used
    )
    return action, recorded


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _plain_stamp(path: str) -> tuple[int, ...]:
    """Read the fields of a ``Stamp``: making and formatting thousands takes time."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path costs three times as much
    except (OSError, ValueError):
        return ()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
