"""Builder of requested targets, without their projects.

A job builds several targets of a model. They share an executor with its database and worker
servers, as the targets of a project do, and a folder that has the files of one request at a time.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from buildsys.cli.command import TERMINATED
from buildsys.cli.project_root import typed_path
from buildsys.cli.remote_jobs import FACTS, RequestPlace
from buildsys.errors import CheckFailed, StageError, TemporaryError, Unavailable, UsageError
from buildsys.execution.action_request import (
    BUILD,
    STATE,
    ActionRequest,
    RequestedBaselines,
    check_machine,
    materialize,
)
from buildsys.execution.executor import Executor
from buildsys.execution.outcome import Outcome
from buildsys.execution.provenance import ProvenanceSigner
from buildsys.plan.action import RESULT, Action
from buildsys.store.file_digests import DigestCache, hash_file
from buildsys.store.ledger import PASSED, ActionRecord, OutputFile
from buildsys.store.object_store import Store
from buildsys.store.publish import remove_abandoned, temporary_folder
from buildsys.store.state_db import MemoryStateDb, StateDb, warn_on_stderr
from buildsys.workers.client.pool import JobReply, WorkerPool


class _ObservedPool(WorkerPool):
    """A pool with the reply of its last job."""

    reply: JobReply | None = None
    failure: StageError | None = None

    def run(self, *args: Any, **options: Any) -> JobReply:
        self.reply = self.failure = None
        try:
            self.reply = super().run(*args, **options)
        except StageError as error:
            self.failure = error
            raise
        return self.reply


class RequestBuilder:
    """Builds the targets of requests, one after another."""

    def __init__(
        self, place: RequestPlace, project: Path, facts: StateDb, pool: _ObservedPool
    ) -> None:
        self._place, self._project, self._pool = place, project, pool
        self._store = Store(project / STATE / "store")
        self._actions: dict[str, Action] = {}
        self._baselines = RequestedBaselines(project / BUILD)  # with the request
        self._signer: ProvenanceSigner | None = None
        if place.key is not None:
            self._signer = ProvenanceSigner(
                place.key, warn_on_stderr, lambda: self._baselines.request.source
            )
        self._can_write = False
        db = MemoryStateDb(project / STATE / "state.db")
        self._digests = DigestCache(db)  # of inputs, and of outputs that are the next inputs
        timing_caches = os.environ.get("BUILDSYS_TIMING_CACHES")
        self._executor = Executor(
            project,
            project / BUILD,
            project / STATE,
            self._actions,
            pool=pool,
            store=self._store,
            remote=place.shared,
            signer=self._signer,
            trust=place.trust,
            timing_caches=Path(timing_caches or place.folder / "timing_caches").absolute(),
            before_stage=self._prepare_stage,
            locks=place.folder / "locks",
            facts=facts,
            db=db,
            baselines=self._baselines,
        )

    def take(self, request: ActionRequest) -> None:
        """Write the files of the next request and remove others.

        Raises: UsageError, TemporaryError, OSError.
        """
        self._actions[request.action.target] = replace(request.action, required=False)
        self._baselines.request = request
        self._pool.reply = self._pool.failure = None
        if self._signer is not None:
            self._signer.renew()
        materialize(request, self._place.shared, self._store, self._project, self._digests)

    def build(self, made: dict[str, Any], *, rebuild: bool) -> tuple[Outcome, ActionRecord | None]:
        """Build its target, and check the record in the store.

        ``rebuild``: even if the store has its outputs. ``made`` receives fields of the answer.
        Raises: BuildsysError, OSError: it failed.
        """
        request, shared = self._baselines.request, self._place.shared
        action, target = request.action, request.action.target
        try:
            here = self._executor.examine(target)
            if here.key is None:
                raise StageError(here.unreadable, "run it again")
            check_machine(request, here.key)
            outcome = self._executor.run(target, force=rebuild)
        finally:
            made |= self._recorded(target) | self._said()
        record = self._executor.ledger.lookup(target)
        is_shared = outcome.status == PASSED and not action.measures
        if is_shared and (record is None or shared.read_action(target, record.key) is None):
            problem = f"{target} was built, but its record is not in the store"
            raise TemporaryError(problem, "run it again; see the warnings above")
        return outcome, record

    def has_built(self, target: str) -> bool:
        """Return True for a target of an earlier request, with its own records."""
        return target in self._actions

    def stored_files(self, action: Action, names: Iterable[str]) -> dict[str, Any]:
        """Share a target's files and log; return them as fields of the answer."""
        build = self._project / BUILD
        found = {name: self._stored(build / name) for name in names}
        files = {name: file for name, file in found.items() if file is not None}
        log = self._stored(self.log(action))
        objects = [*files.values(), *([log] if log else [])]
        self._place.shared.push_objects(objects, self._store)
        return {"files": files, "log": log}

    def log(self, action: Action) -> Path:
        """Return the log of a stage."""
        return (self._project / BUILD / action.outputs[RESULT].path).with_suffix(".log")

    def close(self) -> None:
        """End the worker servers' jobs and close the databases."""
        self._pool.close()
        self._executor.close()

    def _prepare_stage(self) -> None:
        if not self._can_write:
            self._place.shared.check_writable()
            self._can_write = True
        if self._signer is not None:
            self._signer.prepare()

    def _recorded(self, target: str) -> dict[str, Any]:
        """Return the ledger's facts about a target, as fields of the answer."""
        ledger = self._executor.ledger
        record = ledger.lookup(target)
        found: dict[str, Any] = {"files": dict.fromkeys(ledger.owned(target))}
        if record is not None:
            found |= {
                "key": record.key,
                "reads": ledger.reads(target),
                "reason": record.reason,
                "hint": record.hint,
                "seconds": record.seconds,
                "figures": record.figures,
            }
        return found

    def _said(self) -> dict[str, Any]:
        """Return what the stage has said, as fields of the answer."""
        reply, failure = self._pool.reply, self._pool.failure
        if reply is not None:
            names = ("reason", "hint", "seconds", "figures", "peak_rss_mib")
            return {name: getattr(reply, name) for name in names}
        if isinstance(failure, CheckFailed | Unavailable):
            return {"reason": failure.problem, "hint": failure.hint}
        return {}

    def _stored(self, path: Path) -> OutputFile | None:
        """Add a file to the store of this job, if it exists."""
        if not path.is_file():
            return None
        digest, stamp = hash_file(str(path))
        file = OutputFile(digest, stamp.size)
        return file if self._store.put(path, file) else None


@contextmanager
def request_builder(place: RequestPlace, keep: str) -> Iterator[RequestBuilder]:
    """Yield a builder in a temporary folder, or in the new folder ``keep``.

    Raises: UsageError: the folder to keep exists.
    """
    with ExitStack() as stack:
        project = stack.enter_context(_work_folder(place.folder, keep))
        # all requests share their servers: another folder would start new ones
        facts = stack.enter_context(closing(StateDb(place.folder / FACTS)))
        builder = RequestBuilder(place, project, facts, _ObservedPool(place.folder))
        yield stack.enter_context(closing(builder))


@contextmanager
def _work_folder(private: Path, keep: str) -> Iterator[Path]:
    """Yield an empty folder; those of killed runs are removed."""
    if keep:
        folder = typed_path(keep).absolute()
        if folder.exists():
            raise UsageError(f"--keep: {keep} exists", "name a new folder")
        folder.mkdir(parents=True)
        yield folder
        return
    remove_abandoned(private)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        with temporary_folder(private, "run-action") as folder:
            yield folder
    finally:
        signal.signal(signal.SIGTERM, before)
