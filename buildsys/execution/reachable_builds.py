"""Stored builds of plans.

Manifest fields, sources and the chain of inputs are compared, as a repository has them. Versions of
libraries, devices and buildsys itself are not: builds from other machines count as well.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from buildsys.execution.action_key import ABSENT, KeyBuilder
from buildsys.plan.action import Action
from buildsys.store.file_digests import DigestCache
from buildsys.store.ledger import ActionRecord
from buildsys.store.state_db import StateDb

_FROM_REPOSITORY = ("config", "source", "weights", "inputs", "outputs")  # kinds of key parts
_INPUT = "input:"
Parts = frozenset[tuple[str, str]]
RecordsOf = Callable[[str], Sequence[ActionRecord]]  # target -> its known builds


@dataclass(frozen=True)
class PlannedBuilds:
    """Targets with the parts of their keys from a repository."""

    parts: Mapping[str, Parts]
    after: Mapping[str, tuple[str, ...]]  # target -> targets whose outputs it reads

    def matching(self, records: RecordsOf) -> set[tuple[str, str]]:
        """List target and key of the restorable builds of all targets.

        Their inputs must be outputs of matching builds upstream.
        """
        builds: dict[str, list[ActionRecord]] = {}
        for target in self.parts:
            self._matching(target, records, builds)
        return {(record.target, record.key) for record in chain.from_iterable(builds.values())}

    def _matching(
        self, target: str, records: RecordsOf, builds: dict[str, list[ActionRecord]]
    ) -> list[ActionRecord]:
        if target not in builds:
            made = {
                (f"{_INPUT}{path}", file.digest)
                for name in self.after[target]
                for record in self._matching(name, records, builds)
                for path, file in record.files.items()
            }
            builds[target] = [
                record
                for record in records(target)
                if _select(record.parts) == self.parts[target]
                and all(
                    part in made
                    for part in record.parts.items()
                    if part[0].startswith(_INPUT) and part[1] != ABSENT
                )
            ]
        return builds[target]


def planned_builds(root: Path, build: Path, actions: Mapping[str, Action]) -> PlannedBuilds:
    """Plan the builds of ``actions`` in the project at ``root``.

    Raises: StageError: a source cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="buildsys-") as folder:
        db = StateDb(Path(folder) / "state.db")
        keys = KeyBuilder(root, build, DigestCache(db), db)
        parts = {
            target: _select(keys.build(action, from_repository=True).parts)
            for target, action in actions.items()
        }
        db.close()
    return PlannedBuilds(parts, {target: action.after for target, action in actions.items()})


def _select(parts: Mapping[str, str]) -> Parts:
    return frozenset(
        part for part in parts.items() if part[0].partition(":")[0] in _FROM_REPOSITORY
    )
