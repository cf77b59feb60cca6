"""The size limit of the store, at the end of a run, and what always stays in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from buildsys.cli.git_revision import project_at
from buildsys.errors import BuildsysError
from buildsys.execution.baselines import baseline_digests
from buildsys.execution.build_cache import PlannedBuilds, planned_builds, store_folder
from buildsys.execution.key_parts import builder_versions
from buildsys.project.load import Project, load_project
from buildsys.project.plan import ProjectPlan
from buildsys.report.formatting import size
from buildsys.stages.table import GATE
from buildsys.store import garbage_collection
from buildsys.store.ledger import ActionRecord, Ledger
from buildsys.store.object_store import Store
from buildsys.store.state_db import ReadOnlyStateDb
from buildsys.system.printable import printable_line

_COLLECTED_SHARE = 0.9  # share of the limit, so that not every run collects
_SPARED_S = 24 * 3600.0  # other checkouts may share the store, and their manifests are unknown here
Names = set[tuple[str, str]]  # target and key


def enforce_limit(project: Project) -> None:
    """Shrink a store over its limit, with a notice. Never fails a run.

    Results reached by the manifests or used within a day stay.
    """
    limit, store = project.store_limit(), Store(store_folder(project.state))
    try:
        used = garbage_collection.stored_bytes(store)
        if limit is None or used <= limit:
            return
        collection = garbage_collection.collect(
            store,
            unused_for_s=None,
            max_bytes=round(limit * _COLLECTED_SHARE),
            reached=reached_by(project.root),
            spared_for_s=_SPARED_S,
            dry_run=False,
        )
        text = f"the store exceeded its limit of {size(limit)} (`store.limit`): "
        text += f"{size(collection.bytes)} removed, {size(collection.kept_bytes)} remain"
        if not collection.bytes:
            return
        if collection.kept_bytes > limit:
            text += ", needed by the manifests or used within a day"
    except (BuildsysError, OSError) as error:  # such as broken manifests
        text = f"the store stays above its limit: {' '.join(str(error).split())}"
    sys.stderr.write(f"buildsys: {printable_line(text)}\n")
    sys.stderr.flush()


def reached_by(
    root: Path, revisions: Sequence[str] = ()
) -> Callable[[Sequence[ActionRecord]], Names]:
    """Plan what manifests and gates need, here or at one of the revisions.

    Returns a function that lists target and key of the needed ones among stored records.
    Raises: ManifestErrors: the manifests here are wrong.
    UsageError: a revision is unknown, or its manifests are wrong.
    """
    project = load_project(root)
    plans = [_planned(project)]
    for revision in revisions:
        with project_at(project, revision) as at:
            plans.append(_planned(at.project))
    return partial(_reached_names, project.state, plans)


def _planned(project: Project) -> PlannedBuilds:
    actions = ProjectPlan(project.models, builder_versions(project.root))
    return planned_builds(project.root, project.build, actions)


def _reached_names(
    state: Path, plans: Sequence[PlannedBuilds], stored: Sequence[ActionRecord]
) -> Names:
    ledger = Ledger(ReadOnlyStateDb(state / "state.db"))
    by_target: dict[str, list[ActionRecord]] = {}
    for record in stored:
        by_target.setdefault(record.target, []).append(record)

    def builds(target: str) -> list[ActionRecord]:
        # a recorded build may be in the build folder only, and its outputs feed stored builds
        return [*by_target.get(target, ()), *ledger.records(target)]

    gates = {target for plan in plans for target in plan.parts if target.startswith(f"{GATE}:")}
    baselines = baseline_digests(ledger, gates)
    names = {name for plan in plans for name in plan.matching(builds)}
    return names | {
        (record.target, record.key)
        for record in stored
        if any(file.digest in baselines for file in record.files.values())
    }
