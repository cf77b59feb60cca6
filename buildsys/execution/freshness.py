"""Freshness of targets: up to date or stale, and the reasons. Writes nothing."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from buildsys.errors import StageError
from buildsys.execution import stale_reasons as kinds
from buildsys.execution.action_key import ActionKey, KeyBuilder
from buildsys.execution.baselines import GateBaselines
from buildsys.execution.build_cache import is_restorable, store_folder
from buildsys.execution.recorded_reads import TOO_MANY, describe
from buildsys.execution.stale_reasons import StaleReason, part_reasons
from buildsys.plan.action import Action, missing_outputs
from buildsys.store import ledger
from buildsys.store.file_digests import DigestCache
from buildsys.store.ledger import HistoryEntry, Ledger, Outputs
from buildsys.store.object_store import Store
from buildsys.store.signatures import NO_POLICY, RestoredSigners, TrustPolicy
from buildsys.store.state_db import StateDb

FRESH, STALE, MAY_RERUN = "fresh", "stale", "may rerun"
_RECENT_RUNS = 20  # considered for the time of a run and the last reasons
_RESULTS = (ledger.PASSED, ledger.UNAVAILABLE, ledger.NOISY)
_SUCCEEDED = (ledger.PASSED, ledger.UNAVAILABLE, ledger.RESTORED, ledger.ACCEPTED)


@dataclass(frozen=True)
class Freshness:
    """The decision on one target at one moment, with its reasons."""

    target: str
    up_to_date: bool = False
    key: ActionKey | None = None  # None: a file cannot be read
    reasons: tuple[StaleReason, ...] = ()
    failure: str | None = None  # why the last run failed
    noise: str | None = None  # why the last measurement is noisy; if stale, after a steady one
    failed_with_this_key: bool = False
    unavailable: str | None = None  # why an up-to-date target could not run here
    last: HistoryEntry | None = None
    expected_s: float | None = None  # time of the last run with a result
    restorable: bool = False  # the store has the outputs of this key

    @property
    def state(self) -> str:
        """FRESH, STALE, or MAY_RERUN: its own key matches, but an input will be rebuilt."""
        if not self.up_to_date:
            return STALE
        return MAY_RERUN if self.reasons else FRESH


def explain(
    targets: Iterable[Freshness], after: Mapping[str, Sequence[str]]
) -> dict[str, Freshness]:
    """Add the effects upstream to ``targets``, which are in the order of the graph.

    ``after`` maps each target to the targets whose outputs it reads.
    """
    explained: dict[str, Freshness] = {}
    for target in targets:
        upstream = []
        for name in after.get(target.target, ()):
            state = explained[name].state if name in explained else FRESH
            if state != FRESH:
                effect = "will rerun" if state == STALE else "may rerun"
                upstream.append(StaleReason(kinds.UPSTREAM, name, None, effect))
        whole = replace(target, reasons=(*target.reasons, *upstream))
        if whole.state != FRESH:
            whole = replace(whole, unavailable=None, noise=None)
        explained[target.target] = whole
    return explained


class FreshnessChecker:
    """Checker of targets against their records and outputs.

    With a ``store``, it also finds out if the outputs of a stale target could be restored. Outputs
    restored from a shared cache count only if ``trust`` allows it.
    """

    def __init__(
        self,
        build: Path,
        keys: KeyBuilder,
        db: StateDb,
        digests: DigestCache,
        store: Store | None = None,
        trust: TrustPolicy = NO_POLICY,
    ) -> None:
        self._build = build
        self._keys = keys
        self._digests = digests
        self._ledger = Ledger(db)
        self._store = store
        self.trust = trust
        self._signers = RestoredSigners(db)

    def up_to_date_status(self, action: Action) -> str | None:
        """Look up the recorded status of a target, None if it is stale.

        Raises: StageError: a file cannot be read.
        """
        if not self._ledger.has_records(action.target):  # its key need not be known
            return None
        return self._current_status(action, self._build_key(action))

    def up_to_date_record(self, action: Action) -> ledger.ActionRecord | None:
        """Look up the record of a target, None if it is stale.

        Raises: StageError: a file cannot be read.
        """
        key = self._build_key(action)
        if not self._current_status(action, key):
            return None
        return self._ledger.lookup(action.target, key.digest)

    def examine(self, action: Action) -> Freshness:
        """Examine a target, with unreadable files as reasons.

        Raises: StageError: the state cannot be read.
        """
        try:
            return self.check(action)
        except StageError as error:
            runs = self._ledger.history(action.target, _RECENT_RUNS)
            unreadable = StaleReason(kinds.UNREADABLE, str(error))
            return _from_history(action.target, runs, reasons=(unreadable,))

    def check(self, action: Action) -> Freshness:
        """Examine a target. Raises: StageError: a file cannot be read."""
        runs = self._ledger.history(action.target, _RECENT_RUNS)
        if not runs and not self._ledger.has_records(action.target):  # never built
            key, never = self._keys.build(action), (StaleReason(kinds.NEVER_BUILT),)
            in_store = self._in_store(action, key)
            return _from_history(action.target, runs, key, reasons=never, restorable=in_store)
        key = self._build_key(action)
        freshness = _from_history(action.target, runs, key)
        status = self._current_status(action, key)
        if status is not None:
            made_it = [run for run in runs if run.key == key.digest]
            record = None
            if status != ledger.PASSED:
                record = self._ledger.lookup(action.target, key.digest)
            reason = record.reason if record else None
            return replace(
                freshness,
                up_to_date=True,
                last=next(iter(made_it or runs), None),
                unavailable=reason if status == ledger.UNAVAILABLE else None,
                noise=reason if status == ledger.NOISY else None,
            )
        try:
            return self._add_reasons(freshness, action, key, runs)
        except StageError as error:  # an output: it cannot keep the target from being built
            return replace(freshness, reasons=(StaleReason(kinds.UNREADABLE, str(error)),))

    def _add_reasons(
        self, freshness: Freshness, action: Action, key: ActionKey, runs: list[HistoryEntry]
    ) -> Freshness:
        is_forgotten = self._ledger.is_forgotten(action.target)
        latest = None if is_forgotten else self._ledger.lookup(action.target)
        status = runs[0].status if runs else ledger.PASSED
        failure = runs[0].reason if status not in (*_SUCCEEDED, ledger.NOISY) else None
        # the record of a steady measurement outlasts a noisy one
        is_steady = latest is not None and latest.status == ledger.PASSED
        noise = runs[0].reason if status == ledger.NOISY and is_steady else None
        reasons = [] if failure is None else [StaleReason(kinds.FAILED, failure)]
        reasons += [] if noise is None else [StaleReason(kinds.NOISY, noise)]
        restorable = self._in_store(action, key)
        if latest is None:
            no_record = kinds.NEVER_BUILT
            if not is_forgotten and self._ledger.has_records(action.target):
                no_record = kinds.LOST_RECORD
            elif any(run.status in (*_SUCCEEDED, ledger.NOISY) for run in runs):
                no_record = kinds.FORGOTTEN  # to be built, not restored
                restorable = False
            reasons = reasons or [StaleReason(no_record)]
        else:
            reasons += part_reasons(latest.parts, key.parts)
            # a failed check removes the outputs, a noisy measurement replaces them
            if noise is None and status != ledger.FAILED:
                changes = self._output_changes(latest.outputs)
                reasons += [StaleReason(kind, path) for kind, path in changes]
            if not self._signers.are_trusted(action.target, key.digest, self.trust):
                reasons.append(StaleReason(kinds.UNTRUSTED))
            sentences = () if reasons else describe(key.undeclared, strict=True)
            reasons += [StaleReason(kinds.UNDECLARED, sentence) for sentence in sentences]
            if not reasons and latest.status == ledger.UNAVAILABLE and is_required(action):
                reasons.append(StaleReason(kinds.UNAVAILABLE, latest.reason))
        return replace(
            freshness,
            reasons=tuple(reasons or [StaleReason(kinds.OTHER_KEYS)]),
            failure=failure,
            noise=noise,
            failed_with_this_key=failure is not None and runs[0].key == key.digest,
            restorable=restorable,
        )

    def _in_store(self, action: Action, key: ActionKey) -> bool:
        if self._store is None or key.missing:
            return False
        return is_restorable(self._store, self._ledger, action, key)

    def _build_key(self, action: Action) -> ActionKey:
        # also without sources: a library installed as editable reads like the user's code
        return self._keys.build(action, self._ledger.reads(action.target))

    def _current_status(self, action: Action, key: ActionKey) -> str | None:
        """Look up the status of an up-to-date target, None for a stale one."""
        if key.missing or TOO_MANY in key.reads or (action.strict_reads and key.undeclared):
            return None
        published = self._ledger.outputs(action.target, key.digest)
        if published is None:
            return None
        status, outputs = published
        if status == ledger.UNAVAILABLE and is_required(action):
            return None
        declared = all(ref.path in outputs for ref in action.outputs.values())
        if status not in _RESULTS or not declared or missing_outputs(action, status, outputs):
            return None
        if not self._signers.are_trusted(action.target, key.digest, self.trust):
            return None
        return None if any(self._output_changes(outputs)) else status

    def _output_changes(self, outputs: Outputs) -> Iterator[tuple[str, str]]:
        paths = {name: f"{self._build}/{name}" for name in outputs}
        # a huge file in place of a small output is not worth reading
        sizes = {paths[name]: file.size if file else -1 for name, file in outputs.items()}
        digests = self._digests.digests(paths.values(), sizes)
        for name, published in outputs.items():
            present = digests[paths[name]]
            if published is None:
                if present is not None:
                    yield kinds.OUTPUT_ADDED, name
            elif present is None:
                yield kinds.OUTPUT_MISSING, name
            elif present.digest != published.digest:
                yield kinds.OUTPUT_EDITED, name


def read_only_checker(
    project: Path,
    build: Path,
    state: Path,
    trust: TrustPolicy = NO_POLICY,
    code: Sequence[str] = (),
) -> FreshnessChecker:
    """Make a checker for queries: it neither creates nor writes the state."""
    from buildsys.store.state_db import ReadOnlyStateDb  # not needed by a run

    db = ReadOnlyStateDb(state / "state.db")
    digests = DigestCache(db)
    keys = KeyBuilder(project, build, digests, db, GateBaselines(Ledger(db)), code)
    return FreshnessChecker(build, keys, db, digests, Store(store_folder(state)), trust)


def is_required(action: Action) -> bool:
    """Return True if an unavailable target fails (manifest or BUILDSYS_STRICT)."""
    return action.required or is_strict()


def is_strict() -> bool:
    """Return True if BUILDSYS_STRICT makes every target required."""
    return os.environ.get("BUILDSYS_STRICT", "").strip() not in ("", "0")


def _from_history(
    target: str, runs: list[HistoryEntry], key: ActionKey | None = None, **more: Any
) -> Freshness:
    """Begin with the last run and the time of the last one with a result."""
    seconds = next((run.seconds for run in runs if run.status in _RESULTS), None)
    return Freshness(target, key=key, last=next(iter(runs), None), expected_s=seconds, **more)
