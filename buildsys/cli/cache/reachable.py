"""Which stored results the manifests reach: those here, and those of git revisions.

What a result was made from is compared as far as a repository can say it: manifest fields, and the content of the
user's files. Versions of libraries, devices and buildsys itself are not: what another machine built stays as well.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from buildsys.execution.action_key import ABSENT
from buildsys.execution.builder_versions import builder_versions
from buildsys.execution.key_builder import KeyBuilder
from buildsys.manifest.project import Project, load_project
from buildsys.manifest.project_settings import pinned_timing_caches
from buildsys.plan.action import Action
from buildsys.plan.project_plan import ProjectPlan, model_of
from buildsys.store.file_digests import DigestCache
from buildsys.store.ledger import ActionRecord
from buildsys.store.state_db import StateDb
from buildsys.store.text_cache import StateTextCache

_GIVEN = (
    "config",
    "source",
    "weights",
    "inputs",
    "outputs",
)  # kinds of parts that come from the repository
_INPUT = "input:"
Given = frozenset[tuple[str, str]]


class Reached(NamedTuple):
    """What manifests reach of what is stored."""

    records: Callable[[ActionRecord], bool]
    pins: frozenset[str]  # digests of the timing caches that engines pin


def reached_by(root: Path, revisions: Sequence[str]) -> Reached:
    """Return what the manifests here or at one of the revisions reach.

    Raises: ManifestErrors: the manifests here are wrong.
    UsageError: a revision is not known, or its manifests are wrong.
    """
    from buildsys.cli.git_revision import project_at

    project = load_project(root)
    reached, pins = set(_given(project)), _pins(project)
    for revision in revisions:
        with project_at(project, revision) as at:
            reached |= set(_given(at.project))
            pins |= _pins(at.project)
    return Reached(
        lambda record: (record.target, _given_of(record.parts)) in reached, frozenset(pins)
    )


def _pins(project: Project) -> set[str]:
    return pinned_timing_caches(model.data for model in project.models.values())


def builds_of(
    project: Project, revision: str, target: str, records: Callable[[str], Sequence[ActionRecord]]
) -> list[ActionRecord] | None:
    """Return those of the recorded builds of a target that were made from it as it is at a git revision.

    Fields and sources are those of the revision, and so are the fields and sources behind each of its inputs.
    None where the revision has no such target. ``records`` has the builds of a target, in the order of the answer.

    Raises: UsageError: the revision is not known, or its manifests are wrong.
    """
    from buildsys.cli.git_revision import project_at

    with project_at(project, revision) as at:
        actions = ProjectPlan(
            at.project.models, builder_versions(at.project.root, project.state)
        ).of(model_of(target))
        return (
            _Builds(actions, dict(_given(at.project, actions)), records).of(target)
            if target in actions
            else None
        )


class _Builds:
    """The recorded builds of a model's targets that fit their actions, and the files that they made."""

    def __init__(
        self,
        actions: Mapping[str, Action],
        given: Mapping[str, Given],
        records: Callable[[str], Sequence[ActionRecord]],
    ) -> None:
        self._actions = actions
        self._given = given
        self._records = records
        self._found: dict[str, list[ActionRecord]] = {}

    def of(self, target: str) -> list[ActionRecord]:
        """Return the builds of one target."""
        if target not in self._found:
            made = [
                record.files for needed in self._actions[target].after for record in self.of(needed)
            ]
            files = {(path, file.digest) for outputs in made for path, file in outputs.items()}
            self._found[target] = [
                record for record in self._records(target) if self._fits(target, record, files)
            ]
        return self._found[target]

    def _fits(self, target: str, record: ActionRecord, made: set[tuple[str, str]]) -> bool:
        if _given_of(record.parts) != self._given[target]:
            return False
        inputs = (
            part
            for part in record.parts.items()
            if part[0].startswith(_INPUT) and part[1] != ABSENT
        )
        return all((label.removeprefix(_INPUT), digest) in made for label, digest in inputs)


def _given(
    project: Project, actions: Mapping[str, Action] | None = None
) -> Iterable[tuple[str, Given]]:
    actions = (
        ProjectPlan(project.models, builder_versions(project.root, project.state))
        if actions is None
        else actions
    )
    with tempfile.TemporaryDirectory(prefix="buildsys-") as folder:
        db = StateDb(Path(folder) / "state.db")
        keys = KeyBuilder(project.root, project.build, DigestCache(db), StateTextCache(db))
        yield from (
            (target, _given_of(keys.build(action).parts)) for target, action in actions.items()
        )
        db.close()


def _given_of(parts: Mapping[str, str]) -> Given:
    return frozenset(
        (label, value) for label, value in parts.items() if label.partition(":")[0] in _GIVEN
    )
