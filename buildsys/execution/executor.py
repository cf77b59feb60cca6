"""Executor: brings one target at a time up to date."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildsys.errors import BuildsysError, CheckFailed, StageError, Unavailable, joined
from buildsys.execution.action_key import ActionKey, KeyBuilder
from buildsys.execution.baselines import Baselines, KeysAtRevision
from buildsys.execution.build_cache import BuildCache
from buildsys.execution.freshness import (
    Explanation,
    Freshness,
    FreshnessChecker,
    explain,
    is_required,
)
from buildsys.execution.outcome import Outcome
from buildsys.execution.recorded_reads import TOO_MANY, add_warnings, forbidden
from buildsys.execution.run_records import RunRecords
from buildsys.execution.stale_reasons import ASKED_FOR, Reason, encode_reasons, summarize_reasons
from buildsys.execution.up_to_date_models import UpToDateModels
from buildsys.plan.action import RESULT, Action, missing_outputs
from buildsys.store import ledger
from buildsys.store.file_digests import DigestCache, stamp_file
from buildsys.store.ledger import ActionRecord, HistoryEntry, Ledger, OutputFile
from buildsys.store.locks import LockHolder, Locks
from buildsys.store.object_store import Store
from buildsys.store.publish import Background, Publisher, make_folders
from buildsys.store.signatures import BUILT_HERE, NO_POLICY, RestoredSigners, key_name
from buildsys.store.state_db import StateDb, warn_on_stderr

if TYPE_CHECKING:
    from buildsys.history.recorder import Recorder
    from buildsys.store.shared_cache import SharedCache
    from buildsys.store.signatures import SigningKey, TrustPolicy
    from buildsys.workers.client.pool import JobReply, WorkerPool
    from buildsys.workers.job import Job

Event = dict[str, Any]
_REQUESTED = Reason(ASKED_FOR)
_LISTED_FILES = 4  # of a failed check
_ATTEMPTS = 2  # if an input is written while the stage runs


class Executor:
    """Checks targets and brings them up to date. Thread-safe.

    A noisy benchmark is published for people to see, and stays stale.

    ``threads`` is the number of processor threads per worker, ``jobs`` that of stages at a time; 0
    is no limit. ``on_event`` gets the target with the worker's events, ``{"event": "stale",
    "reason": text}`` before anything is restored or run, and ``{"event": "waiting", "holder": text,
    "elsewhere": in another process}``. ``make_recorder`` is called before the first target that is
    not up to date, ``before_stage`` before any stage, ``keys_at`` for a revision that a gate pins.
    """

    def __init__(
        self,
        project_root: Path,
        build: Path,
        state: Path,
        actions: Mapping[str, Action],
        *,
        pool: WorkerPool,
        store: Store,
        remote: SharedCache | None = None,
        signing_key: SigningKey | None = None,
        trust: TrustPolicy = NO_POLICY,
        timing_caches: Path | None = None,
        threads: int = 0,
        jobs: int = 0,
        on_event: Callable[[str, Event], None] = lambda *_: None,
        notify: Callable[[str], None] = warn_on_stderr,
        make_recorder: Callable[[], Recorder | None] = lambda: None,
        before_stage: Callable[[], None] = lambda: None,
        keys_at: KeysAtRevision = lambda *_: frozenset(),
    ) -> None:
        self._project = project_root
        self._build = build
        self._actions = actions
        self._pool = pool
        self._timing_caches = timing_caches
        self._threads = threads
        # targets that wait for a GPU or for the machine do not count
        self._slots = threading.Semaphore(jobs) if jobs else nullcontext()
        self._on_event, self._before_stage = on_event, before_stage
        self._store, self._state = store, state
        self._db = pool.texts = StateDb(state / "state.db", notify)
        self._digests = DigestCache(self._db)
        self.ledger = Ledger(self._db)
        self._stopped = False
        self._locks = Locks(state / "locks")
        self._background = Background()
        self._runs = RunRecords(self.ledger, build, self._background, make_recorder)
        self._publisher = Publisher(build, self._digests, self.ledger, self._background, notify)
        self._cache = BuildCache(
            build, store, self.ledger, remote, notify, signing_key=signing_key, trust=trust
        )
        self._signers = RestoredSigners(self._db)
        self._baselines = Baselines(self.ledger, project_root, state, keys_at)
        self._keys = KeyBuilder(project_root, build, self._digests, self._db, self._baselines)
        checked = (build, self._keys, self._db, self._digests)
        self._checker = FreshnessChecker(*checked, trust=trust)
        self._forecaster = FreshnessChecker(*checked, store, trust)
        self.models = UpToDateModels(build, self._db, self._keys, self._checker)

    def is_fresh(self, target: str) -> bool:
        """Return True if a target is up to date; ``run`` reports an unreadable file."""
        return self.up_to_date_status(target) is not None

    def up_to_date_status(self, target: str) -> str | None:
        """Return the status of an up-to-date target, None for a stale one."""
        try:
            return self._checker.up_to_date_status(self._actions[target])
        except StageError:
            return None

    def examine(self, target: str) -> Freshness:
        """Return a target's freshness. Raises: StageError: unusable state."""
        return self._checker.examine(self._actions[target])

    def forecast(self, targets: Sequence[str]) -> dict[str, Explanation]:
        """Predict a run of targets in build order, with their usual times.

        Raises: StageError: the state cannot be used.
        """
        after = {target: self._actions[target].after for target in targets}
        return explain((self._forecaster.examine(self._actions[one]) for one in targets), after)

    def run(self, target: str, *, force: bool = False, request: Reason = _REQUESTED) -> Outcome:
        """Bring a target up to date; ``force`` rebuilds it for reason ``request``.

        Raises: CheckFailed: its result file is published. StageError: nothing is published.
        The target is stale after both.
        """
        action, on_wait = self._actions[target], partial(self._report_wait, target)
        with self._locks.target(target, on_wait) as waited:
            found = self._checker.check(action)
            key = found.key
            assert key is not None
            _ = key.digest  # made before a stage can change what it depends on
            if found.up_to_date and (waited or not force):
                record = self.ledger.lookup(target, key.digest)
                if record is not None:
                    return Outcome.recorded(record, waited=True)
            stamp_file(str(self._log(action)))  # refuses a FIFO, which its writers would wait for
            reasons = found.reasons or (request,)
            self._on_event(target, {"event": "stale", "reason": summarize_reasons(reasons)})
            why = encode_reasons(reasons)
            self._runs.prepare()
            if not force and not key.missing and not self.ledger.is_forgotten(target):
                record = self._restore(action, key, why)
                if record is not None:
                    return Outcome.recorded(record, restored=True)
            self._before_stage()
            # not needed with nothing to do
            from buildsys.execution.availability import needs_no_device
            from buildsys.execution.stage_job import earlier_builds, hold_devices, stage_job

            devices = not needs_no_device(action, key, self._project)
            with (
                hold_devices(self._locks, action, target, on_wait, needed=devices) as variables,
                self._slots,
            ):
                self._publisher.remove_abandoned()
                known = self.ledger.records(target) if action.refits and not force else ()
                earlier = earlier_builds(action, key.parts, known, self._store)
                make_job = partial(
                    stage_job, threads=self._threads, environment=variables, earlier=earlier
                )
                return self._make(action, key, why, make_job)

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
                    (tree / name).parent.mkdir(parents=True, exist_ok=True)
                    (tree / name).write_bytes(content)
                sealed = self._publisher.digest_outputs(tree)
                self._publisher.publish(target, tree, sealed, last=action.outputs[RESULT].path)
            self.ledger.add_run(run, sealed)

    def add_baseline(self, job: Job, action: Action, key: ActionKey, folder: Path) -> Job:
        """Return a gate's job with its baseline, copied into ``folder``."""
        baseline, files = self._baselines.fetch(action, key.parts, self._store, folder)
        earlier = {f"baseline.{role}": path for role, path in files.items()}
        return replace(job, baseline=baseline, inputs={**job.inputs, **earlier})

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
        if action.strict_reads and key.undeclared:
            return None
        wanted, signer = record.files, self._cache.signer(record)
        self._publisher.remove_abandoned()
        fetched = self._publisher.missing(wanted)
        with self._publisher.staging(action.target) as tree:
            if not self._cache.fetch(record, fetched, tree):
                return None
            digests = {name: file.digest for name, file in fetched.items()}
            self._publisher.publish(
                action.target,
                tree,
                self._publisher.digest_outputs(tree, digests),
                last=action.outputs[RESULT].path,
                kept=wanted,
                optional=record.outputs,
                restored=True,
            )
        with suppress(OSError):  # the outputs are complete without a log
            text = f"# {action.target} was restored from the store; built {record.started}"
            text += f"; signed by {key_name(signer)}" if signer not in ("", BUILT_HERE) else ""
            self._log(action).write_text(f"{text}\n", encoding="utf-8")
        self._signers.add(record, signer)
        self._runs.add_build(action, key, record, why, record.figures, restored=True)
        return record

    def _make(
        self, action: Action, key: ActionKey, why: str, make_job: Callable[..., Job]
    ) -> Outcome:
        """Run the stage and publish its outputs if no input changed meanwhile."""
        target = action.target
        for _ in range(_ATTEMPTS):
            if key.missing:
                path = self._build / key.missing[0]
                raise StageError(
                    f"{target} needs {path}, which does not exist", "build what it needs first"
                )
            started = ledger.utc_now()
            with self._publisher.staging(target) as tree:
                begun = time.perf_counter()
                try:
                    reply = self._run_stage(action, key, tree, make_job)
                except BuildsysError as error:
                    error.seconds = took = time.perf_counter() - begun
                    if isinstance(error, StageError):  # libraries do not always report a full disk
                        error.hint = joined(self._publisher.low_disk_note(), error.hint)
                    run = HistoryEntry(target, key.digest, "error", started, took, str(error), why)
                    if not self._stopped:
                        self._runs.add(action, key, run)
                    raise
                now = self._keys.build(action)
                if changed := self._keys.changed_file(action, key, now):
                    text = f"{changed} changed while {target} ran; nothing was published"
                    raise StageError(text, "run it again")
                # equal content is no proof (a branch may have been checked out and back)
                if now.files == key.files:
                    if reply.status == ledger.FAILED:  # never up to date, whatever it read
                        return self._publish(action, key, tree, reply, started, why)
                    whole, changed = self._keys.after_run(action, key, reply.reads)
                    if not changed:
                        self._report_reads(action, whole, tree, started, why)
                        return self._publish(action, whole, tree, reply, started, why)
            key = now
        text = f"{changed or 'an input'} was written repeatedly while {target} read it"
        raise StageError(text, "run it again")

    def _report_reads(
        self, action: Action, key: ActionKey, tree: Path, started: str, why: str
    ) -> None:
        """Add reads outside the key to the warnings of the result.

        Raises: StageError: the manifest forbids them.
        """
        if not (reads := key.undeclared):
            return
        if action.strict_reads:
            error = forbidden(reads)
            run = HistoryEntry(action.target, key.digest, "error", started, 0.0, str(error), why)
            self._runs.add(action, key, run)
            raise error
        add_warnings(tree / action.outputs[RESULT].path, reads)

    def _run_stage(
        self, action: Action, key: ActionKey, tree: Path, make_job: Callable[..., Job]
    ) -> JobReply:
        log, begun = self._log(action), time.perf_counter()
        outputs = {role: tree / ref.path for role, ref in action.outputs.items()}
        make_folders(path.parent for path in (log, *outputs.values()))
        caches = self._timing_caches
        job = make_job(action, self._project, self._build, outputs, timing_caches=caches)
        on_event = partial(self._on_event, action.target)
        with ExitStack() as stack:
            if action.baseline is not None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self._state)))
                job = self.add_baseline(job, action, key, folder)
            try:
                return self._pool.run(job, log=log, timeout_s=action.timeout_s, on_event=on_event)
            except (CheckFailed, Unavailable) as error:
                if not outputs[RESULT].exists():
                    raise
                from buildsys.workers.client.pool import JobReply

                status = ledger.FAILED if isinstance(error, CheckFailed) else ledger.UNAVAILABLE
                seconds = time.perf_counter() - begun
                return JobReply(status, error.problem, error.hint, {}, seconds, log)

    def _publish(
        self, action: Action, key: ActionKey, tree: Path, reply: JobReply, started: str, why: str
    ) -> Outcome:
        target, status, main = action.target, reply.status, action.outputs[RESULT].path
        declared = dict.fromkeys(ref.path for ref in action.outputs.values())
        written = {name: True for name in declared if (tree / name).is_file()}
        if missing := missing_outputs(action, status, written):
            problem = f"the stage {action.stage} did not write {missing[0]} for {target}"
            raise StageError(problem, f"`doit debug {target}` runs it in the foreground")
        if status == ledger.FAILED:  # nobody must mistake what failed its check for a good output
            for name in declared.keys() - {main}:
                (tree / name).unlink(missing_ok=True)
        sealed = self._publisher.digest_outputs(tree)
        self._publisher.publish(target, tree, sealed, last=main, optional=declared)
        figures = {**reply.figures, "peak_rss_mib": reply.peak_rss_mib}
        if status in (ledger.FAILED, ledger.NOISY):  # without a record it is never up to date
            ended = status, started, reply.seconds, reply.reason, why
            run = HistoryEntry(target, key.digest, *ended)
            self._runs.add(action, key, run, sealed, figures)
            if status == ledger.NOISY:
                return Outcome(target, status, reply.seconds, reply.reason, reply.hint)
            files = [main, *sorted(sealed.keys() - {main})][:_LISTED_FILES]  # and failing tensors
            details = f"details: {', '.join(self._shown(self._build / name) for name in files)}"
            failure = CheckFailed(reply.reason, joined(reply.hint, details))
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
            figures=ledger.summary(reply.figures),
            log=self._shown(self._log(action)),
        )
        self._signers.add(record, BUILT_HERE)
        self._runs.add_build(action, key, record, why, figures)
        names = key.without_reads().digest if key.reads else ""
        self._background.submit(partial(self._cache.keep, action, record, names))
        if status == ledger.UNAVAILABLE and is_required(action):
            raise StageError(f"{target} is required, but unavailable: {reply.reason}", reply.hint)
        return Outcome.recorded(record)

    def _log(self, action: Action) -> Path:
        return (self._build / action.outputs[RESULT].path).with_suffix(".log")

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._project) if path.is_relative_to(self._project) else path)

    def _report_wait(self, target: str, holder: LockHolder | None) -> None:
        elsewhere = holder is not None and holder.pid != os.getpid()
        name = "other targets" if holder is None else str(holder) if elsewhere else holder.target
        self._on_event(target, {"event": "waiting", "holder": name, "elsewhere": elsewhere})
