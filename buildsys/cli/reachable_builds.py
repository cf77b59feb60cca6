"""Stored builds reached by the manifests, here or at git revisions.

Manifest fields and sources are compared, as a repository has them. Versions of libraries, devices
and buildsys itself are not: builds from other machines are kept as well.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from buildsys.cli.git_revision import project_at
from buildsys.execution.action_key import ABSENT
from buildsys.execution.builder_versions import builder_versions
from buildsys.execution.key_builder import KeyBuilder
from buildsys.manifest.project import Project, load_project
from buildsys.plan.action import Action
from buildsys.plan.project_plan import ProjectPlan, model_of
from buildsys.store.file_digests import DigestCache
from buildsys.store.ledger import ActionRecord
from buildsys.store.state_db import StateDb, StateTextCache

_FROM_REPOSITORY = ("config", "source", "weights", "inputs", "outputs")  # kinds of key parts
_INPUT = "input:"
Parts = frozenset[tuple[str, str]]


class Reached(NamedTuple):
    """Records and timing caches reached by manifests."""

    records: Callable[[ActionRecord], bool]
    pins: frozenset[str]  # digests of pinned timing caches


def reached_by(root: Path, revisions: Sequence[str]) -> Reached:
    """Return the builds reached here or at one of the revisions.

    Raises: ManifestErrors: the manifests here are wrong.
    UsageError: a revision is unknown, or its manifests are wrong.
    """
    project = load_project(root)
    reached, pins = set(_repository_parts(project)), _pins(project)
    for revision in revisions:
        with project_at(project, revision) as at:
            reached |= set(_repository_parts(at.project))
            pins |= _pins(at.project)
    return Reached(
        lambda record: (record.target, _select(record.parts)) in reached, frozenset(pins)
    )


def builds_of(
    project: Project, revision: str, target: str, records: Callable[[str], Sequence[ActionRecord]]
) -> list[ActionRecord] | None:
    """Return the recorded builds matching a target at a git revision.

    The fields and sources of all targets upstream must match as well. None: the revision has no
    such target. ``records`` returns the builds of a target, in the order of the answer.

    Raises: UsageError: the revision is unknown, or its manifests are wrong.
    """
    with project_at(project, revision) as at:
        versions = builder_versions(at.project.root, project.state)
        actions = ProjectPlan(at.project.models, versions).of(model_of(target))
        if target not in actions:
            return None
        parts = dict(_repository_parts(at.project, actions))
    matching: dict[str, list[ActionRecord]] = {}

    def matches(target: str) -> list[ActionRecord]:
        if target not in matching:
            upstream = [record for name in actions[target].after for record in matches(name)]
            made = {
                (f"{_INPUT}{path}", file.digest)
                for record in upstream
                for path, file in record.files.items()
            }
            matching[target] = [
                record
                for record in records(target)
                if _select(record.parts) == parts[target]
                and all(
                    part in made
                    for part in record.parts.items()
                    if part[0].startswith(_INPUT) and part[1] != ABSENT
                )
            ]
        return matching[target]

    return matches(target)


def _pins(project: Project) -> set[str]:
    """Return the digests of timing caches pinned by engines."""
    engines = (engine for model in project.models.values() for engine in model.data["engines"])
    pinned = (engine.get("timing_cache") or {} for engine in engines)
    return {str(cache["pin"]) for cache in pinned if cache.get("pin")}


def _repository_parts(
    project: Project, actions: Mapping[str, Action] | None = None
) -> Iterator[tuple[str, Parts]]:
    if actions is None:
        actions = ProjectPlan(project.models, builder_versions(project.root, project.state))
    with tempfile.TemporaryDirectory(prefix="buildsys-") as folder:
        db = StateDb(Path(folder) / "state.db")
        keys = KeyBuilder(project.root, project.build, DigestCache(db), StateTextCache(db))
        for target, action in actions.items():
            yield target, _select(keys.build(action).parts)
        db.close()


def _select(parts: Mapping[str, str]) -> Parts:
    return frozenset(
        part for part in parts.items() if part[0].partition(":")[0] in _FROM_REPOSITORY
    )
