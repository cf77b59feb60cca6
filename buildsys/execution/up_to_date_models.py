"""Models that were found with nothing to do, and whether all that this was seen from is still the same.

Planning a model, making the key of each target and asking for its record takes about 1.5 ms. For a model that had
nothing to do at an earlier look one question is left: has anything changed that the verdict depends on? All of that
goes into one token: the resolved manifest, our own code, libraries, devices, the user's sources, the records, and the
stat of every input and output. The same token means the same verdict; with another one the model is looked at in full.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.execution.key_inputs import Surveyor, own_code
from buildsys.plan.action import Action, ToolchainRef
from buildsys.store.file_digests import boot_id
from buildsys.store.state_db import Row, StateDb, Statement
from buildsys.system.files import SETTLE_NS, stamp

_FEW = 100  # models that are asked for by name; from then on everything is read

# fields of an action that the verdict sees elsewhere: in the manifest, in the stat of files, in our own code
SEEN_ELSEWHERE = frozenset((
    "target", "stage", "model", "variant", "options", "inputs", "outputs", "after", "order", "code", "advisory",
    "required", "measures", "exclusive", "alone_on_gpu", "timeout_s", "doc",
))  # fmt: skip
_SURROUNDINGS = [field.name for field in fields(Action) if field.name not in SEEN_ELSEWHERE]

_MODELS = "SELECT model, token, about, files FROM settled_models WHERE valid_in = ?"
_RECORDS = """
SELECT kept.model, kept.target, kept.key, records.status, records.outputs
FROM settled_targets AS kept LEFT JOIN records ON records.target = kept.target AND records.key = kept.key
"""
_RECORD = "SELECT target, key, status, outputs FROM records WHERE target = ? AND key = ?"
_KEEP_MODEL = "INSERT OR REPLACE INTO settled_models VALUES (?, ?, ?, ?, ?)"
_KEEP_TARGET = "INSERT INTO settled_targets VALUES (?, ?, ?)"
_DROP_TARGETS = "DELETE FROM settled_targets WHERE model = ?"


class Candidate(NamedTuple):
    """A model that may have nothing to do."""

    text: str  # the resolved manifest
    actions: Sequence[Action]


@dataclass(frozen=True)
class Verdict:
    """A model that has nothing to do, and what this depends on."""

    model: str
    valid_in: str  # the boot of the machine, and what is the same for all models
    token: str
    about: str  # what its actions use besides their files: lines of JSON
    files: Sequence[str]  # inputs and outputs, relative to the build folder
    keys: Mapping[str, str]  # of its targets
    lasts: bool  # any later change of it would show


class SettledModels:
    """The verdicts on the models of a project, kept in its state.

    They count for this boot of the machine, like the digests of files that have not reached the disk.
    """

    def __init__(self, build: Path, db: StateDb, surveyor: Surveyor) -> None:
        self._build = f"{build}{os.sep}"
        self._db = db
        self._surveyor = surveyor

    def find(self, models: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the targets of those models (name -> resolved manifest) whose verdict still holds.

        Raises: StageError: the state or a source cannot be read.
        """
        look = self._look()
        records: dict[str, list[Row]] = {}
        for model, *record in self._rows(_RECORDS, " WHERE kept.model", models):
            records.setdefault(model, []).append(tuple(record))
        settled: dict[str, list[str]] = {}
        for model, token, about, files in self._rows(_MODELS, " AND model", models, look.valid_in):
            rows = records.get(model, [])
            with suppress(
                ValueError, TypeError, AttributeError, KeyError
            ):  # damaged: counts as none
                if (
                    model in models
                    and _token(models[model], look.state(about, files.split("\n")), rows) == token
                ):
                    settled[model] = [row[0] for row in rows]
        return settled

    def judge(
        self, models: Mapping[str, Candidate], fresh_key: Callable[[str], str | None]
    ) -> Iterator[Verdict]:
        """Yield the verdicts on those models for all of whose targets ``fresh_key`` returns a key.

        What a verdict depends on is looked at before and after: where it has changed meanwhile there is none.
        Raises: StageError: the state or a source cannot be read.
        """
        begun_ns, look = time.time_ns(), self._look()
        about = {model: _about(actions) for model, (_, actions) in models.items()}
        declared = {model: _declared_files(actions) for model, (_, actions) in models.items()}
        before = {model: look.state(about[model], declared[model]) for model in models}
        fresh = {
            model: self._fresh_keys(actions, fresh_key) for model, (_, actions) in models.items()
        }
        now = self._look()
        for model, keys in fresh.items():
            if keys and now.state(about[model], declared[model]) == before[model]:
                records = [row for entry in keys.items() for row in self._db.read(_RECORD, entry)]
                files = sorted({*declared[model], *_recorded_files(records)})
                state = now.state(about[model], files)
                token = _token(models[model].text, state, records)
                # what is written once more within the clock's step would not show
                lasts = state.newest_ns + SETTLE_NS < begun_ns
                yield Verdict(model, now.valid_in, token, about[model], files, keys, lasts)

    def keep(self, verdicts: Iterable[Verdict]) -> None:
        """Store those verdicts that last. Raises: StageError: the state cannot be written."""
        statements: list[Statement] = []
        for verdict in verdicts:
            if verdict.lasts:
                row = (
                    verdict.model,
                    verdict.valid_in,
                    verdict.token,
                    verdict.about,
                    "\n".join(verdict.files),
                )
                statements += [(_KEEP_MODEL, row), (_DROP_TARGETS, (verdict.model,))]
                statements += [
                    (_KEEP_TARGET, (verdict.model, target, key))
                    for target, key in verdict.keys.items()
                ]
        if statements:
            self._db.write(statements)

    def _fresh_keys(
        self, actions: Sequence[Action], fresh_key: Callable[[str], str | None]
    ) -> dict[str, str]:
        """Return the keys of a model's targets, nothing as soon as one of them has something to do."""
        keys: dict[str, str] = {}
        for action in actions:
            key = fresh_key(action.target)
            if key is None or not self._is_whole(action):
                return {}
            keys[action.target] = key
        return keys

    def _is_whole(self, action: Action) -> bool:
        """Return whether all files are there that doit asks for; an unavailable target may be up to date without."""
        paths = (self._build + ref.path for ref in action.outputs.values() if not ref.optional)
        return all(os.path.exists(path) for path in paths)  # noqa: PTH110 - asked thousands of times

    def _look(self) -> _Look:
        return _Look(self._build, self._surveyor)

    def _rows(self, query: str, column: str, models: Mapping[str, str], *values: str) -> list[Row]:
        if len(models) > _FEW:
            return self._db.read(query, values)
        return self._db.read(
            f"{query}{column} IN ({', '.join('?' * len(models))})", (*values, *models)
        )


class _State(NamedTuple):
    """All that the verdict on a model depends on besides its manifest and its records."""

    digest: str
    newest_ns: int  # when the last of its files was written


class _Look:
    """One look at the world: what many models share is looked at once."""

    def __init__(self, build: str, surveyor: Surveyor) -> None:
        self._build = build
        self._surveyor = surveyor
        self._known: dict[str, str] = {}

    def state(self, about: str, files: Iterable[str]) -> _State:
        """Return the state of what a model's actions use and of its files."""
        _, code_ns = self._world
        stats = [stamp(self._build + name) for name in files]
        newest_ns = max((max(found[0], found[1]) for found in stats if found), default=0)
        used = [self._surroundings(line) for line in about.split("\n")]
        return _State(_digest((self.valid_in, used, stats)), max(newest_ns, code_ns))

    @cached_property
    def valid_in(self) -> str:
        """What must be the same for any verdict to be read at all."""
        return f"{boot_id()} {self._world.digest}"

    @cached_property
    def _world(self) -> _State:
        """What is the same for all models: our own code, and what else changes a verdict."""
        code = {path: stamp(path) for path in sorted(own_code())}
        newest_ns = max(max(found[0], found[1]) for found in code.values() if found)
        strict = os.environ.get("BUILDSYS_STRICT", "0")
        return _State(_digest((code, strict)), newest_ns)

    def _surroundings(self, line: str) -> str:
        known = self._known.get(line)
        if known is None:
            parts = self._surveyor.snapshot(surroundings_of(line)).parts
            known = self._known[line] = _digest(sorted(parts.items()))
        return known


def surroundings(action: Action) -> str:
    """Return all that an action uses besides its inputs, as one line of JSON."""
    return json.dumps({name: getattr(action, name) for name in _SURROUNDINGS}, sort_keys=True)


def surroundings_of(line: str) -> Action:
    """Return an action without files or options: its key holds what the surroundings are at this moment."""
    used: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in json.loads(line).items()
    }
    if used["toolchain"] is not None:
        name, python, env = used["toolchain"]
        used["toolchain"] = ToolchainRef(name, python, tuple((key, value) for key, value in env))
    return Action(
        target="", stage="", model="", variant="", options={}, inputs={}, outputs={}, **used
    )


def _token(text: str, state: _State, records: Iterable[Row]) -> str:
    return _digest((text, state.digest, sorted(records, key=repr)))


def _about(actions: Iterable[Action]) -> str:
    return "\n".join(sorted({surroundings(action) for action in actions}))


def _declared_files(actions: Sequence[Action]) -> list[str]:
    return sorted(
        {
            ref.path
            for action in actions
            for ref in (*action.inputs.values(), *action.outputs.values())
        }
    )


def _recorded_files(records: Iterable[Row]) -> Iterator[str]:
    for row in records:
        yield from json.loads(row[3])


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
