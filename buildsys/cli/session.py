"""One project in one process: its targets, executor, state and results."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildsys.cli.command import shown_path
from buildsys.cli.doit_backend import FILE, read_marks
from buildsys.cli.target_names import TargetNames
from buildsys.errors import BuildsysError, ManifestErrors, UsageError
from buildsys.execution.key_parts import builder_versions
from buildsys.project.load import empty_project, load_project
from buildsys.project.plan import ProjectPlan
from buildsys.system.files import MAX_RESULT_BYTES, read_limited
from buildsys.system.printable import printable

if TYPE_CHECKING:
    from buildsys.cli.console.progress import ConsoleLine
    from buildsys.execution.executor import Executor, TryChanges
    from buildsys.execution.freshness import Freshness, FreshnessChecker
    from buildsys.execution.run_records import Outcome
    from buildsys.execution.stale_reasons import StaleReason
    from buildsys.history.recorder import HistoryRecorder
    from buildsys.project.load import Project
    from buildsys.store.signatures import TrustPolicy
    from buildsys.system.git import Checkout
    from buildsys.workers.pool import WorkerPool

_CLOSE_LIMIT_S = 5.0  # for stages that were interrupted
# statuses of the ledger, which some runs do not load
_PASSED, _UNAVAILABLE, _NOISY = "passed", "unavailable", "noisy"
_OBJECTS = 100_000  # between garbage collections: modules, manifests and plans stay anyway


class BuildSession(TargetNames):
    """The targets of a project, and their executor.

    Models are planned when they are first needed. All methods may be called from the threads of
    a run with several jobs.
    """

    def __init__(self, project: Project) -> None:
        versions = builder_versions(project.root)
        super().__init__(project, ProjectPlan(project.models, versions))
        # (target, event) from any thread: progress, the stale reason, or waiting for a process
        self.on_event: Callable[[str, Mapping[str, Any]], None] = lambda *_: None
        self.on_warning: Callable[[str], None] | None = None  # None: print it on stderr
        self.began = time.monotonic()
        self.jobs = 1  # targets at a time
        self.always = False  # even targets that are up to date run
        self.finished: dict[str, Outcome] = {}  # in this process, failed targets as well
        self.exit_code = 0  # the worst failure so far
        self.interrupted = 0  # the exit code, once a signal has arrived
        self.is_run = False  # doit has checked a target: it is not forgetting or cleaning
        self.cleaned: set[str] = set()  # doit cleans a target again for each of its groups
        self.up_to_date_targets: Sequence[str] = ()  # of this run that are not tasks of doit
        self.lines: dict[str, ConsoleLine] = {}  # of this run, by target
        self.checked_stale_outputs = False  # after a failure
        self.rebuilds: dict[str, StaleReason] = {}  # targets to run even if up to date, and why
        self.repeats_flaky = False
        self.has_manifest = True  # other commands know the models
        self.is_read_only = False  # not even digests of files are remembered
        self.has_summary = True  # a run ends with tables and pages
        self.try_changes: TryChanges = lambda *_: ""  # after a failure
        self.has_trials = os.environ.get("BUILDSYS_TRIALS", "").strip() != "0"
        self.trial_locks: dict[str, threading.Lock] = {}  # model -> held during its trials
        self.tried_models: set[str] = set()
        self.tried: dict[tuple[str, str], bool | str] = {}  # (change, verify target) -> its end
        self.first_failures: dict[str, str] = {}  # why flaky targets were repeated
        self.fresh: dict[str, str] = {}  # recorded status by up-to-date target
        self._running: set[str] = set()

    @classmethod
    def load(cls, root: Path, *, remember: bool = True) -> BuildSession:
        """Open the project at ``root``, without broken manifests.

        Raises: ManifestErrors: a file that all models share is wrong.
        """
        gc.set_threshold(_OBJECTS)
        return cls(load_project(root, remember=remember))

    @classmethod
    def read_only(cls, root: Path, names: Sequence[str] | None = None) -> BuildSession:
        """Open the project at ``root`` without writing anything, not even a cache.

        With ``names``, the errors of broken manifests that they include are printed.
        Raises: ManifestErrors: a file that all models share is wrong.
        """
        session = cls.load(root, remember=False)
        session.is_read_only = True
        if names is not None:
            session.leave_out(names)
            for error in chain.from_iterable(session.broken.values()):
                sys.stderr.write(printable(f"ERROR: {error}\n"))
        return session

    @classmethod
    def of_history(cls, root: Path) -> BuildSession:
        """Open the project for questions about recorded builds.

        A warning names broken manifests. Nothing is written.
        """
        from buildsys.store.state_db import warn_on_stderr

        try:
            session = cls.read_only(root)
            left_out = ", ".join(session.project.broken)
        except ManifestErrors as error:  # in a file that all models share
            session = cls(empty_project(root))
            left_out = f"all manifests, as they share {error.errors[0].file}"
        if left_out:
            warn_on_stderr(f"broken and left out: {left_out}; `buildsys list` shows the errors")
        return session

    @cached_property
    def _pool(self) -> WorkerPool:
        from buildsys.workers.pool import WorkerPool

        atexit.register(self.close)  # another reporter (`doit -r json`) does not
        return WorkerPool(self.project.state)

    @cached_property
    def executor(self) -> Executor:
        """The executor of this project; it starts nothing before a stage runs."""
        from buildsys.execution.build_cache import store_folder
        from buildsys.execution.executor import Executor
        from buildsys.execution.local_runs import Folders
        from buildsys.store.object_store import Store

        project, remote, signer = self.project, None, None
        folders = project.root, project.build, project.state
        if key := project.signing().key:
            from buildsys.execution.provenance import ProvenanceSigner
            from buildsys.store.signatures import SigningKey

            signer = ProvenanceSigner(SigningKey(key), self._warn, lambda: self.checkout)
        if settings := project.shared_cache():
            from buildsys.store.shared_cache import SharedCache

            known_hosts = project.state / "known_hosts"
            remote = SharedCache(notify=self._warn, known_hosts=known_hosts, **settings)
        return Executor(
            Folders(*folders, project.timing_caches(), project.code),
            self.actions,
            pool=self._pool,
            store=Store(store_folder(project.state)),
            remote=remote,
            signer=signer,
            trust=self.trust,
            jobs=self.jobs if self.jobs > 1 else 0,
            on_event=lambda target, event: self.on_event(target, event),
            notify=self._warn,
            make_recorder=self._make_recorder,
            try_changes=lambda *failure: self.try_changes(*failure),
        )

    def leave_out(self, names: Sequence[str]) -> None:
        """Note the broken manifests that typed names include; the run fails with them."""
        super().leave_out(names)
        if self.broken:
            self.exit_code = max(self.exit_code, UsageError.exit_code)

    def _warn(self, warning: str) -> None:
        from buildsys.store.state_db import warn_on_stderr

        (self.on_warning or warn_on_stderr)(warning)

    @cached_property
    def trust(self) -> TrustPolicy:
        """The project's trusted keys."""
        from buildsys.store.signatures import TrustPolicy

        signing = self.project.signing()
        return TrustPolicy(signing.trusted, signing.unsigned, signing.revoked)

    @cached_property
    def checkout(self) -> Checkout | None:
        """The state of the project's git checkout, if it has one."""
        from buildsys.cli.git_revision import read_checkout
        from buildsys.history.recorder import CHECKOUT_FILE
        from buildsys.system.git import Checkout

        packed = self.project.state / CHECKOUT_FILE
        if packed.is_file():
            return Checkout(**json.loads(packed.read_text(encoding="utf-8")))
        with contextlib.suppress(UsageError, OSError):  # without git, or outside of a repository
            return read_checkout(self.project.root, (self.project.build, self.project.state))
        return None

    def _make_recorder(self) -> HistoryRecorder:
        from buildsys.history.database import History, history_file
        from buildsys.history.recorder import HistoryRecorder
        from buildsys.system.git import Checkout

        return HistoryRecorder(
            History(history_file(self.project.state)),
            lambda: self.checkout or Checkout(),
            lambda model: self.project.models[model].text,
        )

    def is_fresh(self, target: str) -> bool:
        """Check a target; a problem makes it run, and fail with it."""
        self._raise_if_interrupted()
        self.is_run = True
        if target in self.rebuilds:
            return False
        try:
            status = self.executor.up_to_date_status(target)
        except (BuildsysError, OSError, ValueError):
            return False
        if status is None:
            return False
        self.fresh[target] = status
        return True

    def remeasure(self, names: Iterable[str], *, only_noisy: bool = False) -> None:
        """Let benchmarks and gates of targets and groups run again."""
        from buildsys.execution.stale_reasons import ASKED_FOR, NOISY, StaleReason

        for target in self.needed(target for name in names for target in self.members(name)):
            if self.actions[target].measures:
                result = self.result(target)
                if result.get("status") == _NOISY:
                    self.rebuilds[target] = StaleReason(NOISY, str(result.get("reason") or ""))
                elif not only_noisy:
                    self.rebuilds[target] = StaleReason(ASKED_FOR)

    def are_up_to_date(self, targets: Iterable[str]) -> bool:
        """Check targets, each once."""
        return all(
            target in self.fresh or target in self.finished or self.is_fresh(target)
            for target in targets
        )

    def up_to_date_models(self, models: Iterable[str]) -> dict[str, dict[str, str]]:
        """List the targets of entirely up-to-date models, with their status."""
        texts = {model: self.project.models[model].text for model in models}
        self.is_run = True
        try:
            fresh = self.executor.models.find(texts)
            unknown = [model for model in texts if model not in fresh]
            planned = {m: (texts[m], list(self.actions.of(m).values())) for m in unknown}
            fresh |= self.executor.models.check(planned)
        except (BuildsysError, OSError, ValueError):  # the targets run, and fail with it
            return {}
        others = self.ignored() | self.rebuilds.keys()  # doit skips and shows, or runs them
        fresh = {name: ends for name, ends in fresh.items() if others.isdisjoint(ends)}
        for targets in fresh.values():
            self.fresh.update(targets)
        return fresh

    def has_passed(self, target: str) -> bool:
        """Check whether a target has passed, now or earlier."""
        finished = self.finished.get(target)
        return (finished.status if finished else self.fresh.get(target)) == _PASSED

    def shortfall(self, target: str) -> str:
        """Name the status of an unavailable or noisy target, now or earlier, else ""."""
        finished = self.finished.get(target)
        status = finished.status if finished else self.fresh.get(target, "")
        return status if status in (_UNAVAILABLE, _NOISY) else ""

    def recorded_reason(self, target: str) -> tuple[str, str]:
        """Read the recorded reason of an unavailable or noisy target, and what to do."""
        result = self.result(target)
        return str(result.get("reason") or ""), str(result.get("hint") or "")

    def stale_reason(self, target: str) -> str:
        """Summarize why a target runs."""
        from buildsys.execution.stale_reasons import ASKED_FOR, summarize_reasons

        if target in self.fresh:
            return ASKED_FOR
        try:
            return summarize_reasons(self.executor.examine(target).reasons)
        except (BuildsysError, OSError, ValueError):
            return ""

    def build(self, target: str) -> None:
        """Run one target, even if it is up to date; repeat a flaky one of a nightly run once.

        Raises: BuildsysError: the target failed, as recorded in ``finished``.
        KeyboardInterrupt: the run was interrupted.
        """
        self._raise_if_interrupted()
        action, started = self.actions[target], time.monotonic()
        options: dict[str, Any] = {"force": self.always or target in self.fresh}
        if target in self.rebuilds:
            options = {"force": True, "request": self.rebuilds[target]}
        flaky = self.project.models[action.model].data["flaky"] if self.repeats_flaky else ()
        self._running.add(target)
        try:
            try:
                self.finished[target] = self.executor.run(target, **options)
            except BuildsysError as error:
                if self.interrupted or action.stage not in flaky:
                    raise
                self.first_failures[target] = str(error)
                self.finished[target] = self.executor.run(target, **options)
        except Exception as error:
            self._raise_if_interrupted()
            self._note_failure(target, error, time.monotonic() - started)
            raise
        finally:
            self._running.discard(target)

    def _note_failure(self, target: str, error: Exception, seconds: float) -> None:
        from buildsys.execution.run_records import Outcome

        if (stage_seconds := getattr(error, "seconds", None)) is not None:  # as reports have it
            seconds = stage_seconds
        problem, hint = getattr(error, "problem", str(error)), getattr(error, "hint", "")
        kind = type(error).__name__
        self.finished[target] = Outcome(target, "failed", seconds, problem, hint, error=kind)
        code = getattr(error, "exit_code", BuildsysError.exit_code)
        self.exit_code = max(self.exit_code, code)

    def explain(self, targets: Iterable[str]) -> dict[str, Freshness]:
        """Explain the state of targets and dependencies, in build order."""
        from buildsys.execution.freshness import explain

        checker = self.read_only_checker()
        needed = self.in_order(self.needed(targets))
        after = {target: self.actions[target].after for target in needed}
        return explain((checker.examine(self.actions[target]) for target in needed), after)

    def require_fresh(self, targets: Sequence[str], build: str) -> None:
        """Refuse stale targets; ``build`` names the one that makes them.

        Raises: UsageError: a target is not up to date.
        """
        from buildsys.execution.freshness import FRESH

        states = self.explain(targets)
        if stale := [target for target in targets if states[target].state != FRESH]:
            raise UsageError(f"{stale[0]} is not up to date", f"run `buildsys build {build}` first")

    def read_only_checker(self) -> FreshnessChecker:
        """Make a checker of the project, which writes nothing."""
        from buildsys.execution.freshness import read_only_checker

        project = self.project
        folders = project.root, project.build, project.state
        return read_only_checker(*folders, self.trust, project.code)

    def result(self, target: str) -> dict[str, Any]:
        """Read the result file of a target, {} if unreadable."""
        path = self.project.build / self.actions[target].outputs["result"].path
        try:
            result = json.loads(read_limited(path, MAX_RESULT_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return result if isinstance(result, dict) else {}

    def log(self, target: str) -> Path:
        """Locate a target's full log."""
        result = self.project.build / self.actions[target].outputs["result"].path
        return result.with_suffix(".log")

    def keep_traceback(self, target: str, error: BaseException) -> str:
        """Write a traceback to a file; return one line with its path."""
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{target.replace(':', '-')}-{os.getpid()}.log"
        path = self.project.state / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"unexpected {line}; traceback: {shown_path(path)}"

    def interrupt(self, exit_code: int) -> None:
        """Stop all workers and all waiting; builds then raise KeyboardInterrupt."""
        self.interrupted = exit_code
        if "executor" in vars(self):
            self.executor.stop()
        if "_pool" in vars(self):
            self._pool.close()

    def _raise_if_interrupted(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt

    def ignored(self) -> frozenset[str]:
        """Read the targets that doit skips."""
        return read_marks(self.project.state / FILE)

    def forget(self, name: str) -> None:
        """Drop the records of a target or group, of all targets without a name.

        Accepted baselines of gates stay.
        """
        for target in self.members(name) if name else self.actions:
            has_baseline = self.actions[target].baseline is not None
            self.executor.ledger.forget(target, keep_records=has_baseline)

    def close(self) -> None:
        """Stop the workers and the executor, and wait a moment for interrupted threads."""
        if "_pool" in vars(self):
            self._pool.close()
        if "executor" in vars(self):
            self.executor.close()
        deadline = time.monotonic() + _CLOSE_LIMIT_S
        while self._running and time.monotonic() < deadline:
            time.sleep(0.01)
