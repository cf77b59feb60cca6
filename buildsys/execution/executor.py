"""Executor: brings one target at a time up to date."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildsys.errors import BuildsysError, CheckFailed, StageError, UsageError, joined, with_hint
from buildsys.execution.action_key import ActionKey, KeyBuilder
from buildsys.execution.baselines import GateBaselines
from buildsys.execution.build_cache import BuildCache
from buildsys.execution.freshness import Freshness, FreshnessChecker, is_required
from buildsys.execution.local_runs import Folders, LocalRuns
from buildsys.execution.recorded_reads import TOO_MANY, forbidden, warnings_of
from buildsys.execution.run_records import Outcome, RunRecords
from buildsys.execution.stale_reasons import (
    ASKED_FOR,
    StaleReason,
    encode_reasons,
    summarize_reasons,
)
from buildsys.execution.up_to_date_models import UpToDateModels
from buildsys.plan.action import RESULT, Action, missing_outputs
from buildsys.store import ledger
from buildsys.store.file_digests import DigestCache
from buildsys.store.ledger import ActionRecord, HistoryEntry, Ledger, OutputFile
from buildsys.store.locks import Locks
from buildsys.store.object_store import Store
from buildsys.store.publish import Background, Publisher
from buildsys.store.signatures import BUILT_HERE, NO_POLICY, RestoredSigners, signed_by
from buildsys.store.state_db import StateDb, warn_on_stderr
from buildsys.system.files import replace_file
from buildsys.workers.result_file import amend_result

if TYPE_CHECKING:
    from buildsys.execution.provenance import ProvenanceSigner
    from buildsys.store.shared_cache import SharedCache
    from buildsys.store.signatures import TrustPolicy
    from buildsys.system.files import TextCache
    from buildsys.workers.pool import JobReply, WorkerPool

Event = dict[str, Any]
# gets a failed action, its problem, changes of its manifest and an empty folder; says which help
TryChanges = Callable[[Action, str, Sequence[str], Path], str]
_REQUESTED = StaleReason(ASKED_FOR)
_LISTED_FILES = 2  # in the details of a failed check
_ATTEMPTS = 2  # if an input is written while the stage runs


class Executor:
    """Checks targets and brings them up to date. Thread-safe.

    A noisy benchmark is published for people to see and recorded, but not stored. ``jobs`` is the
    number of stages at a time, 0 for no limit. ``on_event`` gets the target with the worker's
    events, ``{"event": "stale", "reason": text}`` before anything is restored or run, and
    ``{"event": "waiting", "holder": text, "elsewhere": in another process}``. ``make_recorder`` is
    called before the first stale target.
    """

    def __init__(
        self,
        folders: Folders,
        actions: Mapping[str, Action],
        *,
        pool: WorkerPool,
        store: Store,
        remote: SharedCache | None = None,
        signer: ProvenanceSigner | None = None,
        trust: TrustPolicy = NO_POLICY,
        jobs: int = 0,
        on_event: Callable[[str, Event], None] = lambda *_: None,
        notify: Callable[[str], None] = warn_on_stderr,
        make_recorder: Callable[[], Any] = lambda: None,
        try_changes: TryChanges = lambda *_: "",
        texts: TextCache | None = None,
    ) -> None:
        project, build, state, _, code = folders
        self._project, self._build, self._actions = project, build, actions
        self._on_event, self._try_changes = on_event, try_changes
        self.remote, self._db = remote, StateDb(state / "state.db", notify)
        self._texts = pool.texts = texts or self._db
        self._digests, self.ledger = DigestCache(self._db), Ledger(self._db)
        self._stopped = False
        self._locks = Locks(state / "locks")
        background = self._background = Background()
        self._runs = RunRecords(self.ledger, build, background, make_recorder)
        self._publisher = Publisher(build, self._digests, self.ledger)
        self._cache = BuildCache(build, store, remote, notify, signer=signer, trust=trust)
        self._signer, self._signers = signer, RestoredSigners(self._db)
        self._baselines = GateBaselines(self.ledger)
        slots = threading.Semaphore(jobs) if jobs else nullcontext()
        self.here = LocalRuns(
            folders, pool, store, self._locks, self.ledger, self._baselines, jobs, slots
        )
        self._keys = KeyBuilder(project, build, self._digests, self._texts, self._baselines, code)
        self._checker = FreshnessChecker(build, self._keys, self._db, self._digests, trust=trust)
        self.models = UpToDateModels(build, self._db, self._keys, self._checker)

    def up_to_date_status(self, target: str) -> str | None:
        """Look up the status of an up-to-date target, None for a stale one.

        ``run`` reports an unreadable file.
        """
        try:
            return self._checker.up_to_date_status(self._actions[target])
        except StageError:
            return None

    def examine(self, target: str) -> Freshness:
        """Examine a target. Raises: StageError: unusable state."""
        return self._checker.examine(self._actions[target])

    def run(
        self, target: str, *, force: bool = False, request: StaleReason = _REQUESTED
    ) -> Outcome:
        """Bring a target up to date; ``force`` rebuilds it for reason ``request``.

        Raises: CheckFailed: its result file is published. StageError: nothing is published.
        The target is stale after both.
        """
        action, on_wait = self._actions[target], partial(self._report_wait, target)
        with self._locks.target(target, on_wait) as waited:
            freshness = self._checker.check(action)
            key = freshness.key
            assert key is not None
            _ = key.digest  # made before a stage can change what it depends on
            if freshness.up_to_date and (waited or not force):
                record = self.ledger.lookup(target, key.digest)
                if record is not None:
                    return Outcome.recorded(record, waited=True)
            reasons = freshness.reasons or (request,)
            self._on_event(target, {"event": "stale", "reason": summarize_reasons(reasons)})
            why = encode_reasons(reasons)
            _ = self._runs.recorder  # opened before a stage can change the checkout
            if not force and not key.missing and not self.ledger.is_forgotten(target):
                record = self._restore(action, key, why)
                if record is not None:
                    return Outcome.recorded(record, restored=True)
            _ = self._signer is not None and self._signer.is_usable  # warns before a long build
            self._publisher.remove_abandoned()
            run = partial(
                self.here.run,
                on_wait=on_wait,
                on_event=partial(self._on_event, target),
                refits=action.refits and not force,
            )
            return self._make(action, key, why, run)

    def adopt(self, record: ActionRecord, run: HistoryEntry, reads: Mapping[str, str]) -> None:
        """Publish what another machine built, with its outputs from the store.

        ``reads`` are what that ``run`` read outside its key. A warning says that the record or an
        output is damaged or not trusted.
        """
        action = self._actions[record.target]
        with self._locks.target(record.target, partial(self._report_wait, record.target)):
            if self._cache.accepts(action, record) and self._publish_stored(action, record):
                restored = run.status == ledger.RESTORED
                self.ledger.add(record, why=run.why, restored=restored, reads=reads)

    def accept(self, target: str, reason: str) -> None:
        """Make a build that its gate rejects the baseline of later builds.

        Raises: UsageError: its gate has not rejected it. StageError: a file cannot be read.
        """
        action = self._actions[target]
        with self._locks.target(target, partial(self._report_wait, target)):
            freshness = self._checker.check(action)
            is_rejected = freshness.failed_with_this_key or freshness.noise is not None
            if (key := freshness.key) is None or not is_rejected:
                problem = f"{target} has not rejected this build"
                raise UsageError(problem, f"`buildsys build {target}` checks it")
            name = f"{ledger.ACCEPTED}:{key.digest}"
            run = HistoryEntry(target, name, ledger.ACCEPTED, ledger.utc_now(), 0.0, reason)
            record = ActionRecord(
                target, name, key.parts, {}, run.status, run.started, run.seconds, reason,
                figures={"engine_options": action.options["engine"]},
            )  # fmt: skip
            self.ledger.forget(target, keep_records=True)
            self._runs.add(action, key, run, record=record)

    def replace_by_failure(
        self, target: str, write: Callable[[], tuple[Mapping[str, bytes], str]]
    ) -> None:
        """Replace the outputs of a target by files about a failure.

        ``write`` is called under the target's lock. It returns the files (path relative to the
        build folder -> content) and the reason; without files nothing changes. The target counts
        as failed; the store keeps its outputs.
        Raises: StageError, OSError: the files cannot be replaced.
        """
        action = self._actions[target]
        with self._locks.target(target, partial(self._report_wait, target)):
            files, reason = write()
            if not files:
                return
            key = self._keys.build(action).digest
            run = HistoryEntry(target, key, ledger.FAILED, ledger.utc_now(), 0.0, reason)
            with self._publisher.staging(target) as tree:
                for name, content in files.items():
                    replace_file(tree / name, content)
                sealed = self._publisher.digest_outputs(tree)
                self._publisher.publish(target, tree, sealed, last=action.outputs[RESULT].path)
            self.ledger.add_run(run, sealed)

    def stop(self) -> None:
        """Stop waiting for locks, without recording interrupted targets."""
        self._stopped = True
        self._locks.stopped.set()

    def close(self) -> None:
        """Stop waiting for locks, finish background work and close the state."""
        self._locks.stopped.set()
        try:
            self._background.close()
        finally:
            self._runs.close()
            self._db.close()

    def _restore(self, action: Action, key: ActionKey, why: str) -> ActionRecord | None:
        """Restore the outputs of an earlier build with this key."""
        if TOO_MANY in key.reads:
            return None
        with_reads = partial(self._keys.with_reads, action, key)
        key, record = self._cache.find_with_reads(action, key, with_reads)
        if record is None or (record.status == ledger.UNAVAILABLE and is_required(action)):
            return None
        is_forbidden = action.strict_reads and key.undeclared
        if is_forbidden or not self._publish_stored(action, record):
            return None
        with suppress(OSError):  # the outputs are complete without a log
            signer = signed_by(self._cache.signer(record))
            text = f"# {action.target} was restored from the store; built {record.started}{signer}"
            replace_file(self._log(action), f"{text}\n".encode())
        ended = record.status, ledger.utc_now(), record.seconds, record.reason, why
        run = HistoryEntry(action.target, key.digest, *ended)
        self._runs.add(action, key, run, None, record.figures, record=record, restored=True)
        return record

    def _publish_stored(self, action: Action, record: ActionRecord) -> bool:
        """Publish the outputs of a record from the store, False if one is damaged."""
        self._publisher.remove_abandoned()
        with self._publisher.staging(action.target) as tree:
            if not self._cache.fetch(record, tree):
                return False
            digests = {name: file.digest for name, file in record.files.items()}
            sealed = self._publisher.digest_outputs(tree, digests)
            last = action.outputs[RESULT].path
            self._publisher.publish(action.target, tree, sealed, last=last, optional=record.outputs)
        self._signers.add(record, self._cache.signer(record))
        return True

    def _make(
        self, action: Action, key: ActionKey, why: str, run: Callable[..., JobReply]
    ) -> Outcome:
        """Run the stage and publish its outputs if no input changed meanwhile."""
        target = action.target
        for _ in range(_ATTEMPTS):
            if key.missing:
                problem = f"{target} needs {self._build / key.missing[0]}, which does not exist"
                raise StageError(problem, "build what it needs first")
            started, begun = ledger.utc_now(), time.perf_counter()
            with self._publisher.staging(target) as tree:
                try:
                    reply = run(action, key, tree, self._log(action))
                    now = self._keys.build(action)
                    if changed := self._keys.changed_file(action, key, now):
                        text = f"{changed} changed while {target} ran; nothing was published"
                        raise StageError(text, "run it again", is_external=True)
                    whole = key
                    undeclared: Mapping[str, str] = {}
                    if reply.status != ledger.FAILED:  # never up to date, whatever it read
                        whole, changed = self._keys.after_run(action, key, reply.reads)
                        undeclared = whole.undeclared
                    if undeclared and action.strict_reads:
                        raise forbidden(undeclared)
                except BuildsysError as error:
                    if error.seconds is None:
                        error.seconds = time.perf_counter() - begun
                    if isinstance(error, StageError):  # libraries do not always report a full disk
                        low_disk = self._publisher.low_disk_note()
                        error.is_external |= bool(low_disk)
                        tried = self._try(action, error.problem, error.changes)
                        error.hint = joined(low_disk, tried, error.hint)
                    if not self._stopped:
                        ended = "error", started, error.seconds, str(error), why
                        self._runs.add(action, key, HistoryEntry(target, key.digest, *ended))
                    raise
                # equal content is no proof (a branch may have been checked out and back)
                if now.files == key.files and not changed:
                    if undeclared:
                        result = tree / action.outputs[RESULT].path
                        amend_result(result, warnings=warnings_of(undeclared))
                    if self._signer is not None and reply.status == ledger.PASSED:
                        self._signer.sign_engine(action, whole, tree, started)
                    return self._publish(action, whole, tree, reply, started, why)
            key = now
        text = f"{changed or 'an input'} was written repeatedly while {target} read it"
        raise StageError(text, "run it again", is_external=True)

    def _publish(
        self, action: Action, key: ActionKey, tree: Path, reply: JobReply, started: str, why: str
    ) -> Outcome:
        target, status, main, tried = action.target, reply.status, action.outputs[RESULT].path, ""
        declared = dict.fromkeys(ref.path for ref in action.outputs.values())
        written = {name: True for name in declared if (tree / name).is_file()}
        if missing := missing_outputs(action, status, written):
            problem = f"the stage {action.stage} did not write {missing[0]} for {target}"
            raise StageError(problem, f"`buildsys debug {target}` runs it in the foreground")
        if status == ledger.FAILED:  # nobody must mistake what failed its check for a good output
            for name in declared.keys() - {main}:
                (tree / name).unlink(missing_ok=True)
            if tried := self._try(action, reply.reason, reply.changes):
                amend_result(tree / main, hint=tried)
                reply = replace(reply, hint=joined(tried, reply.hint))
        sealed = self._publisher.digest_outputs(tree)
        self._publisher.publish(target, tree, sealed, last=main, optional=declared)
        figures = {**reply.figures, "peak_rss_mib": reply.peak_rss_mib}
        reason = with_hint(reply.reason, tried)
        run = HistoryEntry(target, key.digest, status, started, reply.seconds, reason, why)
        if status == ledger.NOISY:
            last = self.ledger.lookup(target, key.digest)
            if last is not None and last.status == ledger.PASSED:  # a steady one is kept
                self._runs.add(action, key, run, sealed, figures)
                return Outcome(target, status, reply.seconds, reply.reason, reply.hint)
        if status == ledger.FAILED:  # without a record it is not up to date
            self._runs.add(action, key, run, sealed, figures)
            files = [main, *sorted(sealed.keys() - {main})]  # and failing tensors
            details = ", ".join(self._shown(self._build / name) for name in files[:_LISTED_FILES])
            more = f" and {len(files) - _LISTED_FILES} more" if len(files) > _LISTED_FILES else ""
            failure = CheckFailed(reply.reason, joined(reply.hint, f"details: {details}{more}"))
            failure.seconds = reply.seconds
            raise failure
        outputs: dict[str, OutputFile | None] = dict.fromkeys(declared)
        outputs |= {name: OutputFile(digest, s.size) for name, (digest, s) in sealed.items()}
        record = ActionRecord(
            target=target,
            key=key.digest,
            parts=key.parts,
            outputs=outputs,
            status=status,
            started=started,
            seconds=reply.seconds,
            reason=reply.reason,
            hint=reply.hint,
            figures=reply.figures,
            log=self._shown(self._log(action)),
        )
        self._signers.add(record, BUILT_HERE)
        self._runs.add(action, key, run, None, figures, record=record)
        if status == ledger.NOISY:
            return Outcome.recorded(record)
        names = key.without_reads().digest if key.reads else ""
        self._background.submit(partial(self._cache.keep, action, record, names))
        if status == ledger.UNAVAILABLE and is_required(action):
            problem = f"{target} is required, but unavailable: {reply.reason}"
            raise StageError(problem, reply.hint, is_external=True)
        return Outcome.recorded(record)

    def _try(self, action: Action, problem: str, changes: Sequence[str]) -> str:
        if not changes or self._stopped:
            return ""
        with self.private_folder(action.target) as folder:
            return self._try_changes(action, problem, changes, folder)

    def private_folder(self, target: str) -> AbstractContextManager[Path]:
        """Make a temporary folder; one that a killed process leaves is removed by a later run."""
        self._publisher.remove_abandoned()
        return self._publisher.staging(f"trial@{target}")

    def of_trial(
        self,
        actions: Mapping[str, Action],
        folder: Path,
        remote: SharedCache | None = None,
        **places: Any,
    ) -> Executor:
        """Make an executor of changed actions that publishes into a private folder.

        It shares the store and the workers, but neither records, locks of targets nor history.
        ``places`` replaces other folders.
        """
        folders = self.here.folders
        return Executor(
            folders._replace(build=folder / "build", state=folder / "state", **places),
            actions,
            pool=self.here.pool,
            store=self.here.store,
            remote=remote,
            signer=self._signer,
            trust=self._checker.trust,
            notify=self._db.notify,
            texts=self._texts,
        )

    def _log(self, action: Action) -> Path:
        return (self._build / action.outputs[RESULT].path).with_suffix(".log")

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._project) if path.is_relative_to(self._project) else path)

    def _report_wait(self, target: str, holder: str) -> None:
        elsewhere = bool(holder) and not holder.startswith(f"process {os.getpid()} ")
        name = holder or "other targets"
        self._on_event(target, {"event": "waiting", "holder": name, "elsewhere": elsewhere})
