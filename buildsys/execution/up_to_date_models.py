"""Cache of models known to be up to date.

Planning and checking a model in full takes about 3 ms. For a model that an earlier run found up to
date, one comparison is enough: a token over everything that the finding depends on, that is the
resolved manifest, our own code, libraries, devices, the user's sources, and the stamp of every
input and output. With another token, or after ``forget``, the model is checked in full.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from buildsys.errors import StageError
from buildsys.execution.action_key import KeyBuilder, own_code
from buildsys.execution.freshness import FreshnessChecker, is_strict
from buildsys.execution.recorded_reads import Reads
from buildsys.plan.action import Action, Needs, ToolchainRef
from buildsys.store.file_digests import boot_id
from buildsys.store.ledger import Ledger
from buildsys.store.state_db import StateDb
from buildsys.system.files import SETTLE_NS, stamp

# fields covered by the manifest, by the stamps of files and by our own code
COVERED_ELSEWHERE = frozenset((
    "target", "stage", "model", "variant", "options", "inputs", "outputs", "after", "order", "code",
    "advisory", "required", "measures", "exclusive", "alone_on_gpu", "timeout_s",
    "strict_reads", "baseline",  # the record of a finished gate says which it was
))  # fmt: skip
_ENVIRONMENT = [field.name for field in fields(Action) if field.name not in COVERED_ELSEWHERE]
_SELECT = "SELECT model, token, about FROM settled_models WHERE valid_in = ?"
_INSERT = "INSERT OR REPLACE INTO settled_models VALUES (?, ?, ?, ?, '')"
Statuses = dict[str, str]  # target -> recorded status: passed, unavailable or noisy


class UpToDateModels:
    """The up-to-date models of a project, remembered until the next boot."""

    def __init__(
        self, build: os.PathLike[str], db: StateDb, keys: KeyBuilder, checker: FreshnessChecker
    ) -> None:
        self._build = f"{build}{os.sep}"
        self._db = db
        self._keys = keys
        self._checker = checker
        self._ledger = Ledger(db)

    def find(self, models: Mapping[str, str]) -> dict[str, Statuses]:
        """Find the targets of unchanged models among ``models`` (name -> resolved manifest).

        Raises: StageError: the state or a source cannot be read.
        """
        now = self._moment()
        up_to_date: dict[str, Statuses] = {}
        for model, token, about in self._db.read(_SELECT, (now.valid_in,)):
            # damaged rows, or a source that cannot be read, which the full check reports
            with suppress(ValueError, TypeError, AttributeError, LookupError, StageError):
                environments, files, statuses = json.loads(about)
                if model in models and token == now.token(models[model], environments, files):
                    up_to_date[model] = statuses
        return up_to_date

    def check(self, models: Mapping[str, tuple[str, Sequence[Action]]]) -> dict[str, Statuses]:
        """Check models, with resolved manifest and actions; return the up-to-date ones' targets.

        A change during the check gives the model another token, so the next run checks it again.
        Raises: StageError: the state or a source cannot be read.
        """
        begun_ns, before = time.time_ns(), self._moment()
        up_to_date: dict[str, Statuses] = {}
        rows = []
        for name, (text, actions) in models.items():
            environments = sorted(
                {environment_of(action, self._ledger.reads(action.target)) for action in actions}
            )
            for line in environments:
                before.environment(line)
            refs = (r for a in actions for r in (*a.inputs.values(), *a.outputs.values()))
            names = {ref.path for ref in refs}
            statuses = self._check(actions, names)
            if not statuses:
                continue
            up_to_date[name] = statuses
            files = sorted(names)
            # a second write within the resolution of file times would not show
            if before.newest_ns(files) + SETTLE_NS < begun_ns:
                token = before.token(text, environments, files)
                about = json.dumps((environments, files, statuses))
                rows.append((name, before.valid_in, token, about))
        if rows:
            with suppress(StageError):  # in a read-only state every run checks in full
                self._db.write([(_INSERT, row) for row in rows])
        return up_to_date

    def _moment(self) -> "_Moment":
        return _Moment(self._build, self._keys, repr(self._checker.trust))

    def _check(self, actions: Sequence[Action], files: set[str]) -> Statuses:
        """List the statuses of a model's targets, none if one is stale.

        Adds their recorded outputs to ``files``.
        """
        statuses: Statuses = {}
        for action in actions:
            record = None
            with suppress(StageError):  # an unreadable file, which the run will report
                record = self._checker.up_to_date_record(action)
            # doit runs a target without its files, though an unavailable one may be up to date
            paths = (self._build + ref.path for ref in action.outputs.values() if not ref.optional)
            if record is None or not all(map(os.path.exists, paths)):
                return {}
            statuses[action.target] = record.status
            files.update(record.outputs)
        return statuses


class _Moment:
    """The state of the machine at one moment, shared by all models."""

    def __init__(self, build: str, keys: KeyBuilder, settings: str) -> None:
        self._build = build
        self._keys = keys
        self._environments: dict[str, str] = {}
        code = [(path, stamp(path)) for path in sorted(own_code())]
        self._newest_ns = max(max(written[:2]) for _, written in code if written)
        # the boot of the machine and the state common to all models
        self.valid_in = f"{boot_id()} {_digest((code, is_strict(), settings))}"

    def environment(self, line: str) -> str:
        """Digest libraries, devices and sources, once per environment."""
        if line not in self._environments:
            parts = self._keys.build(*action_in(line)).parts
            self._environments[line] = _digest(sorted(parts.items()))
        return self._environments[line]

    def token(self, text: str, environments: Iterable[str], files: Iterable[str]) -> str:
        """Digest the manifest, environments and present files of a model."""
        stamps = [stamp(self._build + name) for name in files]
        return _digest((text, self.valid_in, [*map(self.environment, environments)], stamps))

    def newest_ns(self, files: Iterable[str]) -> int:
        """Find the time of the last write to a file or to our code."""
        stamps = (stamp(self._build + name) for name in files)
        return max(self._newest_ns, *(max(written[:2]) for written in stamps if written))


def environment_of(action: Action, recorded: Reads | None = None) -> str:
    """Encode the environment of an action as one line of JSON.

    ``recorded`` is what its last run read outside its key.
    """
    used = {name: getattr(action, name) for name in _ENVIRONMENT}
    return json.dumps([used, recorded or {}], sort_keys=True)


def action_in(line: str) -> tuple[Action, Reads]:
    """Decode an action with only its environment and recorded reads.

    Its key is the state of the environment.
    """
    content, recorded = json.loads(line)
    used = {name: _as_tuples(value) for name, value in content.items()}
    used["toolchain"] = used["toolchain"] and ToolchainRef(*used["toolchain"])
    used["needs"] = Needs(*used["needs"])
    action = Action(
        target="", stage="", model="", variant="", options={}, inputs={}, outputs={}, **used
    )
    return action, recorded


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
