"""Runs one action: lock, look up, stage, run the worker, check the inputs again, publish, record."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildsys.errors import BuildsysError, CheckFailed, StageError, Unavailable, joined
from buildsys.execution.build_cache import Cache
from buildsys.execution.freshness import Judge, is_required
from buildsys.execution.key_inputs import Snapshot, Surveyor
from buildsys.execution.outcome import Outcome
from buildsys.execution.stale_reasons import (
    ASKED_FOR,
    Facts,
    Reason,
    encode_reasons,
    in_brief,
    own_reasons,
)
from buildsys.execution.up_to_date_models import Candidate, SettledModels
from buildsys.plan.action import Action, FileRef
from buildsys.store.background import Background
from buildsys.store.file_digests import DigestCache, FileDigest
from buildsys.store.ledger import (
    FAILED,
    PASSED,
    UNAVAILABLE,
    ActionRecord,
    HistoryEntry,
    Ledger,
    OutputFile,
    summary,
    utc_now,
)
from buildsys.store.locks import LockHolder, Locks, machine_lock_folder
from buildsys.store.object_store import Store
from buildsys.store.publish import Publisher, publish_failure
from buildsys.store.state_db import StateDb, warn_on_stderr
from buildsys.store.text_cache import StateTextCache
from buildsys.system.gpus.selection import gpu_uuids
from buildsys.system.interpreters.toolchain import locate_toolchain
from buildsys.workers.job import Job

if TYPE_CHECKING:
    from buildsys.store.shared_cache import SharedCache
    from buildsys.workers.client.pool import WorkerPool

Event = dict[str, Any]
_RESULT = "result"  # the role that every action has
_BUILDING = "engine"  # the stage with builders that time their tactics
_RUNS_WHEN_TOUCHED = 2


@dataclass(frozen=True)
class _Ran:
    """A worker's answer, or the verdict that it raised after writing its result file."""

    status: str
    reason: str
    hint: str
    figures: Mapping[str, Any]
    seconds: float


def _ignore(target: str, event: Event) -> None:
    """Drop an event."""


class Executor:
    """Brings targets up to date and says which are. Threads may share it.

    ``threads`` is each worker's share of the processor, 0 all of it. ``on_event`` gets the worker's events and
    ``{"event": "waiting", "holder": text, "elsewhere": whether that is another process}``, with the target.
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
        timing_caches: Path | None = None,
        threads: int = 0,
        on_event: Callable[[str, Event], None] = _ignore,
        notify: Callable[[str], None] = warn_on_stderr,
    ) -> None:
        self._project = project_root
        self._build = build
        self._actions = actions
        self._pool = pool
        self._timing_caches = timing_caches
        self._threads = threads
        self._on_event = on_event
        self._db = StateDb(state / "state.db", notify)
        self._memo = DigestCache(self._db)
        self._ledger = Ledger(self._db)
        self._locks = Locks(state / "locks", machine_lock_folder(state / "locks"))
        self._background = Background()
        self._publisher = Publisher(build, self._memo, self._background, notify)
        self._cache = Cache(build, store, self._ledger, self._background, remote, notify)
        self._surveyor = Surveyor(project_root, build, self._memo, StateTextCache(self._db))
        self._judge = Judge(project_root, build, self._surveyor, self._db, self._memo)
        self._settled = SettledModels(build, self._db, self._surveyor)
        self._swept = False
        self._sweeping = threading.Lock()

    def is_fresh(self, target: str) -> bool:
        """Return whether a target's outputs are those of its inputs as they are now.

        A file that cannot be read makes it stale: ``run`` then says what is wrong.
        """
        return self.fresh_key(target) is not None

    def fresh_key(self, target: str) -> str | None:
        """Return the key under which a target is up to date, None when it is stale or a file cannot be read."""
        action = self._actions[target]
        try:
            return self._judge.fresh_key(action, self._surveyor.snapshot(action))
        except StageError:
            return None

    def settled(self, models: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the targets of those models (name -> resolved manifest) that had nothing to do and have not changed.

        Raises: StageError: the state cannot be used.
        """
        return self._settled.find(models)

    def settle(self, models: Mapping[str, Candidate]) -> dict[str, list[str]]:
        """Look at models, each up to its first stale target; return the targets of those that have none.

        That is kept for ``settled`` of a later run. Raises: StageError: the state cannot be used.
        """
        verdicts = list(self._settled.judge(models, self.fresh_key))
        with suppress(StageError):  # where nothing can be written every run looks at everything
            self._settled.keep(verdicts)
        return {verdict.model: list(verdict.keys) for verdict in verdicts}

    def run(self, target: str, *, force: bool = False) -> Outcome:
        """Bring a target up to date, or with ``force`` make it anew even if it is.

        Raises: CheckFailed: its result file and what it kept are published, nothing counts as fresh.
        StageError: nothing was published. Both leave the target stale.
        """
        action = self._actions[target]
        waiting = partial(self._tell_waiting, target)
        with self._locks.target(target, waiting) as waited:
            now = self._surveyor.snapshot(action)
            record = None if force and not waited else self._judge.fresh_record(action, now)
            if record is not None:
                return self._outcome(record, waited=True)
            force = force or self._ledger.is_forgotten(target)
            record = None if force else self._restore(action, now)
            if record is not None:
                return self._outcome(record, restored=True)
            gpus = (
                gpu_uuids(action.toolchain.env if action.toolchain else ())
                if action.alone_on_gpu
                else ()
            )
            with self._locks.resources(
                target, devices=gpus, exclusive=action.exclusive, on_wait=waiting
            ):
                self._sweep_once()
                return self._make(action, now, encode_reasons(self._reasons(action, now)))

    def stale_reason(self, target: str) -> str:
        """Return in a few words why a target must be made, an empty string when it is fresh."""
        return in_brief(own_reasons(self._judge.examine(self._actions[target])))

    def examine(self, target: str) -> Facts:
        """Return what is known of a target. Raises: StageError: the state cannot be used."""
        return self._judge.examine(self._actions[target])

    def replace_by_failure(
        self, target: str, write: Callable[[], tuple[Mapping[str, bytes], str]]
    ) -> None:
        """Put files in the place of a target's outputs, which stay in the store; the target counts as failed.

        ``write`` makes them (path relative to the build folder -> content), and the reason, while the target is held
        alone; no files: all stays as it is. Raises: StageError, OSError: that could not be done.
        """
        action = self._actions[target]
        with self._locks.target(target, partial(self._tell_waiting, target)):
            files, reason = write()
            if files:
                run = HistoryEntry(
                    target, self._surveyor.snapshot(action).key, FAILED, utc_now(), 0.0, reason
                )
                publish_failure(
                    self._publisher, self._ledger, run, files, action.outputs[_RESULT].path
                )

    def owned(self, target: str) -> set[str]:
        """Return what a target has put into the build folder, relative to it: its outputs and what lies beside."""
        return self._ledger.owned(target)

    def forget(self, target: str) -> None:
        """Drop a target's records, so that it is stale."""
        self._ledger.forget(target)

    def close(self) -> None:
        """End all waiting for locks, finish what goes on beside and close the state; not for use afterwards."""
        self._locks.stop()
        try:
            self._background.close()
        finally:
            self._db.close()

    def _reasons(self, action: Action, now: Snapshot) -> list[Reason]:
        return own_reasons(self._judge.examine(action, now)) or [Reason(ASKED_FOR)]

    def _make(self, action: Action, before: Snapshot, why: str) -> Outcome:
        for _ in range(_RUNS_WHEN_TOUCHED):
            if before.missing:
                raise StageError(
                    f"{action.target} needs {self._build / before.missing[0]}, which does not exist"
                )
            started = utc_now()
            with self._publisher.staging(action.target) as tree:
                try:
                    ran = self._work(action, tree)
                except BuildsysError as error:
                    if isinstance(
                        error, StageError
                    ):  # libraries do not always say that it was the disk
                        error.hint = joined(self._publisher.low_disk_note(), error.hint)
                    self._ledger.add_run(
                        HistoryEntry(
                            action.target, before.key, "error", started, 0.0, str(error), why
                        )
                    )
                    raise
                after = self._surveyor.snapshot(action)
                if self._inputs_held(action, before, after):
                    return self._publish(action, before, tree, ran, started, why)
            before = after
        raise StageError(
            f"a file that {action.target} reads was written again and again while it ran",
            "run it again",
        )

    def _restore(self, action: Action, now: Snapshot) -> ActionRecord | None:
        """Bring back the outputs that this key had before; None when they are not to be had."""
        if now.missing:
            return None
        record = self._cache.find(action, now)
        if record is None or (record.status == UNAVAILABLE and is_required(action)):
            return None
        wanted = record.files
        why = encode_reasons(self._reasons(action, now))
        there = self._memo.digests(str(self._build / name) for name in wanted)
        self._sweep_once()
        lacking = {
            name: file
            for name, file in wanted.items()
            if _other(there[str(self._build / name)], file)
        }
        with self._publisher.staging(action.target) as tree:
            if not self._cache.fetch(record, lacking, tree):
                return None
            placed = self._publisher.stamp_outputs(
                tree, {name: file.digest for name, file in lacking.items()}
            )
            unwanted = (self._ledger.owned(action.target) | record.outputs.keys()) - wanted.keys()
            self._ledger.claim(action.target, wanted)
            self._publisher.publish(tree, placed, last=action.outputs[_RESULT].path, restored=True)
            self._publisher.remove(unwanted)
        self._write_log(
            action,
            f"# {action.target} was taken from the store; it was built at {record.started}\n",
        )
        self._ledger.add(record, restored=True, why=why)
        return record

    def _write_log(self, action: Action, text: str) -> None:
        with suppress(OSError):  # a courtesy: what was restored is whole without it
            self._log(action).write_text(text, encoding="utf-8")

    def _inputs_held(self, action: Action, before: Snapshot, now: Snapshot) -> bool:
        """Return whether the worker can only have read what the key says; False: a file was written meanwhile.

        Content that is the same again proves nothing (a branch may have been checked out and back), so
        such a run is made once more.
        Raises: StageError: the content is another one now.
        """
        changed = self._surveyor.changed_content(action, before, now)
        if changed:
            raise StageError(
                f"{changed} changed while {action.target} ran; nothing was published",
                "run it again",
            )
        return now.files == before.files

    def _work(self, action: Action, tree: Path) -> _Ran:
        log = self._log(action)
        outputs = {role: tree / ref.path for role, ref in action.outputs.items()}
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            for path in outputs.values():
                path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StageError(f"cannot make {error.filename}: {error.strerror}") from error
        begun = time.perf_counter()
        try:
            job, on_event = self._job(action, outputs), partial(self._on_event, action.target)
            reply = self._pool.run(job, log=log, timeout_s=action.timeout_s, on_event=on_event)
        except (CheckFailed, Unavailable) as verdict:
            if not outputs[_RESULT].exists():
                raise
            status = FAILED if isinstance(verdict, CheckFailed) else UNAVAILABLE
            return _Ran(status, verdict.problem, verdict.hint, {}, time.perf_counter() - begun)
        return _Ran(reply.status, reply.reason, reply.hint, reply.figures, reply.seconds)

    def _job(self, action: Action, outputs: Mapping[str, Path]) -> Job:
        inputs, advisory = self._existing(action.inputs), self._existing(action.advisory)
        return Job(
            target=action.target,
            stage=action.stage,
            model=action.model,
            variant=action.variant,
            options=action.options,
            inputs=inputs,
            outputs=outputs,
            project=self._project,
            advisory=advisory,
            timing_caches=self._timing_caches if action.stage == _BUILDING else None,
            toolchain=locate_toolchain(*action.toolchain, self._project, os.environ)
            if action.toolchain
            else None,
            threads=0 if action.measures else self._threads,
        )

    def _existing(self, files: Mapping[str, FileRef]) -> dict[str, Path]:
        paths = {role: self._build / ref.path for role, ref in files.items()}
        return {role: path for role, path in paths.items() if path.exists()}

    def _publish(
        self, action: Action, before: Snapshot, tree: Path, ran: _Ran, started: str, why: str
    ) -> Outcome:
        result = action.outputs[_RESULT].path
        declared = {ref.path for ref in action.outputs.values()}
        _require_outputs(action, tree, ran.status)
        if ran.status == FAILED:  # what failed its check must not lie where a good one is expected
            for name in declared - {result}:
                (tree / name).unlink(missing_ok=True)
        sealed = self._publisher.digest_outputs(tree)
        unwanted = (self._ledger.owned(action.target) | declared) - sealed.keys()
        self._ledger.claim(action.target, sealed)
        self._publisher.publish(tree, sealed, last=result)
        self._publisher.remove(unwanted)
        if ran.status == FAILED:
            self._ledger.add_failure(
                HistoryEntry(
                    action.target, before.key, FAILED, started, ran.seconds, ran.reason, why
                ),
                sealed,
            )
            raise CheckFailed(
                ran.reason, joined(ran.hint, f"details: {self._shown(self._build / result)}")
            )
        record = self._record(action, before, sealed, ran, started)
        self._ledger.add(record, why=why)
        self._cache.keep(action, record)
        if ran.status == UNAVAILABLE and is_required(action):
            raise StageError(
                f"{action.target} is required, but unavailable: {ran.reason}", ran.hint
            )
        return self._outcome(record)

    def _record(
        self,
        action: Action,
        before: Snapshot,
        sealed: Mapping[str, FileDigest],
        ran: _Ran,
        started: str,
    ) -> ActionRecord:
        absent: dict[str, OutputFile | None] = {ref.path: None for ref in action.outputs.values()}
        published = {
            name: OutputFile(digest, stamp.size) for name, (digest, stamp) in sealed.items()
        }
        return ActionRecord(
            target=action.target,
            key=before.key,
            parts=before.parts,
            outputs={**absent, **published},
            status=ran.status,
            started=started,
            seconds=ran.seconds,
            reason=ran.reason,
            hint=ran.hint,
            figures=summary(ran.figures),
            log=self._shown(self._log(action)),
        )

    def _outcome(
        self, record: ActionRecord, *, waited: bool = False, restored: bool = False
    ) -> Outcome:
        return Outcome(
            target=record.target,
            status=record.status,
            seconds=record.seconds,
            reason=record.reason,
            hint=record.hint,
            figures=record.figures,
            log=self._project / record.log,
            waited=waited,
            restored=restored,
        )

    def _log(self, action: Action) -> Path:
        return (self._build / action.outputs[_RESULT].path).with_suffix(".log")

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._project) if path.is_relative_to(self._project) else path)

    def _tell_waiting(self, target: str, holder: LockHolder | None) -> None:
        told = "other targets" if holder is None else str(holder)
        elsewhere = holder is not None and holder.pid != os.getpid()
        self._on_event(target, {"event": "waiting", "holder": told, "elsewhere": elsewhere})

    def _sweep_once(self) -> None:
        with self._sweeping:
            if not self._swept:
                self._publisher.remove_abandoned()
                self._swept = True


def _require_outputs(action: Action, tree: Path, status: str) -> None:
    for role, ref in action.outputs.items():
        needed = role == _RESULT or (status == PASSED and not ref.optional)
        if needed and not (tree / ref.path).is_file():
            raise StageError(
                f"the stage {action.stage} did not write {ref.path} for {action.target}"
            )


def _other(found: FileDigest | None, wanted: OutputFile) -> bool:
    return found is None or found.digest != wanted.digest
