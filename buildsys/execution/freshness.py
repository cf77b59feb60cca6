"""Judges targets: which are up to date, and what is known of those that are not. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from buildsys.errors import StageError
from buildsys.execution import stale_reasons
from buildsys.execution.build_cache import store_folder, stored_in
from buildsys.execution.key_inputs import Snapshot, Surveyor
from buildsys.execution.stale_reasons import Facts, LastRun
from buildsys.plan.action import Action
from buildsys.store.file_digests import DigestCache
from buildsys.store.ledger import (
    FAILED,
    PASSED,
    UNAVAILABLE,
    ActionRecord,
    HistoryEntry,
    Ledger,
    Outputs,
)
from buildsys.store.object_store import Store
from buildsys.store.state_db import StateDb, warn_on_stderr
from buildsys.store.text_cache import StateTextCache

_RECENT_RUNS = 20  # that tell how long a target takes, and why it was last made
_TYPICAL_RUNS = 5
_ENDED_WELL = (PASSED, UNAVAILABLE, "restored")

IsStored = Callable[[Action, Snapshot], bool]


def nothing_stored(action: Action, now: Snapshot) -> bool:
    """Say that the outputs of this key are in no store."""
    del action, now
    return False


class Judge:
    """Tells whether targets are up to date and collects what is known of those that are not.

    ``is_stored`` tells whether a stale target would be restored instead of built.
    """

    def __init__(
        self,
        project: Path,
        build: Path,
        surveyor: Surveyor,
        db: StateDb,
        memo: DigestCache,
        is_stored: IsStored = nothing_stored,
    ) -> None:
        self._project = project
        self._build = build
        self._surveyor = surveyor
        self._memo = memo
        self._ledger = Ledger(db)
        self._is_stored = is_stored

    def fresh_key(self, action: Action, now: Snapshot) -> str | None:
        """Return the key of a target that is up to date, None for one that is not."""
        if now.missing:
            return None
        found = self._ledger.outputs(action.target, now.key)
        if found is None:
            return None
        status, outputs = found
        if status == UNAVAILABLE and is_required(action):
            return None
        if not all(
            ref.path in outputs for ref in action.outputs.values()
        ):  # a record that was tampered with
            return None
        return None if any(self._output_changes(outputs)) else now.key

    def fresh_record(self, action: Action, now: Snapshot) -> ActionRecord | None:
        """Return the record of a target that is up to date, None for one that is not."""
        key = self.fresh_key(action, now)
        return None if key is None else self._ledger.lookup(action.target, key)

    def examine(self, action: Action, now: Snapshot | None = None) -> Facts:
        """Return what is known of a target; a file that cannot be read is told, not raised."""
        runs = self._ledger.history(action.target, _RECENT_RUNS)
        facts = Facts(action.target, expected_s=_typical_seconds(runs), last=_last_run(runs))
        try:
            now = now or self._surveyor.snapshot(action)
            if self.fresh_key(action, now) is not None:
                return replace(
                    facts,
                    fresh=True,
                    last=_last_run([run for run in runs if run.key == now.key] or runs),
                )
            return self._stale(action, now, runs, facts)
        except StageError as error:
            return replace(facts, unreadable=str(error))

    def _stale(
        self, action: Action, now: Snapshot, runs: list[HistoryEntry], facts: Facts
    ) -> Facts:
        latest = self._ledger.latest(action.target)
        failed = bool(runs) and runs[0].status not in _ENDED_WELL
        facts = replace(
            facts,
            parts=now.parts,
            failure=runs[0].reason if failed else None,
            failed_as_is=failed and runs[0].key == now.key,
            restorable=not now.missing and self._is_stored(action, now),
        )
        if latest is None or not _is_readable(latest.parts):
            missing = self._no_record(action.target, runs)
            # what was forgotten is to be built, not taken from a store
            return replace(
                facts,
                no_record=missing,
                restorable=facts.restorable and missing != stale_reasons.FORGOTTEN,
            )
        published_failure = (
            failed and runs[0].status == FAILED
        )  # its outputs are gone because of that
        return replace(
            facts,
            recorded=latest.parts,
            outputs=() if published_failure else tuple(self._output_changes(latest.outputs)),
            unavailable=latest.reason
            if latest.status == UNAVAILABLE and is_required(action)
            else None,
        )

    def _no_record(self, target: str, runs: list[HistoryEntry]) -> str:
        if self._ledger.has_records(target):
            return stale_reasons.LOST_RECORD
        return (
            stale_reasons.FORGOTTEN
            if any(run.status in _ENDED_WELL for run in runs)
            else stale_reasons.NEVER_BUILT
        )

    def _output_changes(self, outputs: Outputs) -> Iterator[tuple[str, str]]:
        paths = {name: f"{self._build}/{name}" for name in outputs}
        now = self._memo.digests(paths.values())
        for name, published in outputs.items():
            found = now[paths[name]]
            if published is None and found is not None:
                yield stale_reasons.OUTPUT_ADDED, name
            elif published is not None and found is None:
                yield stale_reasons.OUTPUT_MISSING, name
            elif published is not None and found is not None and found.digest != published.digest:
                yield stale_reasons.OUTPUT_EDITED, name


def judge_from_outside(
    project: Path,
    build: Path,
    state: Path,
    notify: Callable[[str], None] = warn_on_stderr,
    is_stored: IsStored | None = None,
) -> Judge:
    """Return a judge for somebody who only looks: the state is not written to, nor made."""
    from buildsys.store.state_db import ReadOnlyStateDb  # a run has no use for it

    db = ReadOnlyStateDb(state / "state.db", notify)
    memo = DigestCache(db)
    surveyor = Surveyor(project, build, memo, StateTextCache(db))
    is_stored = is_stored or stored_in(Store(store_folder(state)), Ledger(db))
    return Judge(project, build, surveyor, db, memo, is_stored)


def is_required(action: Action) -> bool:
    """Return whether being unavailable fails the target: by its manifest, or everywhere by BUILDSYS_STRICT."""
    return action.required or os.environ.get("BUILDSYS_STRICT", "0") not in ("", "0")


def _is_readable(parts: object) -> bool:
    return isinstance(parts, dict) and all(isinstance(value, str) for value in parts.values())


def _last_run(runs: list[HistoryEntry]) -> LastRun | None:
    return (
        LastRun(*runs[0][2:6], reasons=stale_reasons.decode_reasons(runs[0].why)) if runs else None
    )


def _typical_seconds(runs: list[HistoryEntry]) -> float | None:
    """Return the median of the last runs that passed; statistics.median would cost an import of 10 ms."""
    seconds = sorted([run.seconds for run in runs if run.status == PASSED][:_TYPICAL_RUNS])
    middle = len(seconds) // 2
    if not seconds:
        return None
    return seconds[middle] if len(seconds) % 2 else (seconds[middle - 1] + seconds[middle]) / 2
