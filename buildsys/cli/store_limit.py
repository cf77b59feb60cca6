"""The size limit of the store, at the end of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from buildsys.errors import BuildsysError
from buildsys.execution.baselines import baseline_digests
from buildsys.execution.build_cache import store_folder
from buildsys.report.formatting import size
from buildsys.stages.table import GATE
from buildsys.store import garbage_collection
from buildsys.store.ledger import ActionRecord, Ledger
from buildsys.store.object_store import Store
from buildsys.store.state_db import ReadOnlyStateDb
from buildsys.system.printable import printable_line

if TYPE_CHECKING:
    from buildsys.cli.git_revision import Reached
    from buildsys.project.load import Project

_KEPT_SHARE = 0.9  # share of the limit, so that not every run collects
_SPARED_S = 24 * 3600.0  # other checkouts may share the store, and their manifests are unknown here
_RETRY_S = 24 * 3600.0  # after a collection that could not meet the limit


def enforce_limit(project: Project) -> None:
    """Shrink a store over its limit, with a notice. Never fails a run.

    Results reached by the manifests or used within a day stay.
    """
    limit, store = project.store_limit(), Store(store_folder(project.state))
    unmet = project.state / "store-limit"  # as old as the last attempt in vain
    try:
        used = garbage_collection.stored_bytes(store)
        if limit is None or used <= limit:
            return
        with suppress(FileNotFoundError):
            if time.time() - unmet.stat().st_mtime < _RETRY_S:
                return
        _notify(
            f"the store has {size(used)}, more than its limit of {size(limit)}: removing the "
            "least recently used results (`store.limit` in configs/project.yaml)"
        )
        from buildsys.cli.git_revision import reached_by

        reached = reached_by(project.root, ())
        collection = garbage_collection.collect(
            store,
            unused_for_s=None,
            max_bytes=round(limit * _KEPT_SHARE),
            reached=lambda stored: reached_names(project, reached, stored),
            spared_for_s=_SPARED_S,
            dry_run=False,
        )
        text = (
            f"{size(collection.bytes)} removed from the store, {size(collection.kept_bytes)} remain"
        )
        if collection.kept_bytes > limit:
            unmet.touch()
            text += ", needed by the manifests or used within a day"
        else:
            unmet.unlink(missing_ok=True)
        _notify(text)
    except (BuildsysError, OSError) as error:
        with suppress(OSError):
            unmet.touch()
        if isinstance(error, OSError):
            problem = f"{error.filename}: {error.strerror}; check the permissions of the store"
            _notify(f"the store cannot be kept below its limit: {problem}")
        else:  # broken manifests
            _notify(f"the store stays above its limit: {' '.join(str(error).split())}")


def reached_names(
    project: Project, reached: Reached, stored: Sequence[ActionRecord]
) -> set[tuple[str, str]]:
    """List target and key of stored records needed by manifests and gates."""
    ledger = Ledger(ReadOnlyStateDb(project.state / "state.db"))
    names = reached.records(_known_records(ledger, stored))
    targets = {target for plan in reached.plans for target in plan.parts}
    baselines = baseline_digests(ledger, (name for name in targets if name.startswith(f"{GATE}:")))
    return names | {
        (record.target, record.key)
        for record in stored
        if any(file.digest in baselines for file in record.files.values())
    }


def _known_records(
    ledger: Ledger, stored: Iterable[ActionRecord]
) -> Callable[[str], list[ActionRecord]]:
    """Return a lookup of a target's builds, stored or recorded here.

    A recorded build may be in the build folder only, and its outputs feed stored builds.
    """
    by_target: dict[str, list[ActionRecord]] = {}
    for record in stored:
        by_target.setdefault(record.target, []).append(record)
    return lambda target: [*by_target.get(target, ()), *ledger.records(target)]


def _notify(text: str) -> None:
    sys.stderr.write(f"buildsys: {printable_line(text)}\n")
    sys.stderr.flush()
