"""One project in one doit process: targets, state and results."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import threading
import time
import traceback
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildsys.cli.doit_backend import FILE, read_marks
from buildsys.cli.open_project import OpenProject
from buildsys.cli.target_names import models_named_by
from buildsys.errors import BuildsysError, ManifestErrors, UsageError, with_hint
from buildsys.project.load import empty_project, load_project
from buildsys.system.files import MAX_RESULT_BYTES, read_limited

if TYPE_CHECKING:
    from buildsys.execution.freshness import Explanation, FreshnessChecker
    from buildsys.execution.run_records import Outcome
    from buildsys.execution.stale_reasons import Reason
    from buildsys.project.load import Project

_CLOSE_LIMIT_S = 5.0  # for stages that were interrupted
_UNAVAILABLE, _NOISY = "unavailable", "noisy"  # statuses of the ledger, which some runs do not load
_LONG_LIST = re.compile(rb"\[[-+.0-9eE, ]{1000,}\]")  # numbers on one line, as results have them


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Exclude modules, manifests and plans from garbage collection, to save 60 ms."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class Session(OpenProject):
    """Targets of a project, and their executor.

    Models are planned when they are first needed. All methods may be called from the threads of
    a run with several jobs.
    """

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self.began = time.monotonic()
        self.always = False  # even targets that are up to date run
        self.finished: dict[str, Outcome] = {}  # in this process, failed targets as well
        self.exit_code = 0  # the worst failure so far
        self.seconds: float | None = None  # as the console shows it
        self.interrupted = 0  # the exit code, once a signal has arrived
        self.is_run = False  # doit has checked a target: it is not forgetting or cleaning
        self.cleaned: set[str] = set()  # doit cleans a target again for each of its groups
        self.requested: Collection[str] = ()  # targets of this run
        self.up_to_date_targets: Sequence[str] = ()  # those of them that are not tasks of doit
        self.checked_stale_outputs = False  # after a failure
        self.rebuilds: dict[str, Reason] = {}  # targets to run even if up to date, and why
        self.remeasures_noisy = False  # benchmarks and gates whose last measurement was noisy
        self.remeasures_all = False
        self.repeats_flaky = False
        self.first_failures: dict[str, str] = {}  # why flaky targets were repeated
        self._fresh: dict[str, str] = {}  # recorded status by up-to-date target
        self._idle = threading.Condition()
        self._busy = 0

    @classmethod
    def read_only(cls, root: Path, names: Sequence[str] = ()) -> Session:
        """Open the project at ``root`` without writing anything, not even a cache.

        If ``names`` are targets of single models, other manifests may be broken.
        Raises: ManifestErrors: the manifests are wrong.
        """
        with no_garbage_collection():
            if models_named_by(names):
                session = cls(load_project(root, remember=False, leave_out=True))
                with contextlib.suppress(UsageError):
                    if all(map(session.targets_of, names)):
                        return session
            return cls(load_project(root, remember=False))

    @classmethod
    def of_history(cls, root: Path) -> Session:
        """Open the project for questions about recorded builds, without broken manifests.

        A warning names them. Nothing is written.
        """
        from buildsys.store.state_db import warn_on_stderr

        with no_garbage_collection():
            try:
                project = load_project(root, remember=False, leave_out=True)
                left_out = ", ".join(project.broken)
            except ManifestErrors as error:  # in a file that all models share
                project = empty_project(root)
                left_out = f"all manifests, as they share {error.errors[0].file}"
            if left_out:
                warn_on_stderr(f"broken and left out: {left_out}; `buildsys list` shows the errors")
            return cls(project)

    def is_fresh(self, target: str) -> bool:
        """Return True if a target is up to date.

        A problem found here makes the target run, which fails with it.
        """
        self._raise_if_interrupted()
        self.is_run = True
        if target in self.rebuilds:
            return False
        try:
            status = self.executor.up_to_date_status(target)
        except (BuildsysError, OSError, ValueError):
            return False
        if status is None or self._is_measured_again(target, status):
            return False
        self._fresh[target] = status
        return True

    def _is_measured_again(self, target: str, status: str) -> bool:
        """Decide on a new measurement of an up-to-date target, and note its reason."""
        is_noisy = status == _NOISY and (self.remeasures_noisy or self.remeasures_all)
        if not is_noisy and not (self.remeasures_all and self.actions[target].measures):
            return False
        from buildsys.execution.stale_reasons import ASKED_FOR, NOISY, Reason

        reason = str(self.result(target).get("reason") or "")
        self.rebuilds[target] = Reason(NOISY, reason) if is_noisy else Reason(ASKED_FOR)
        return True

    def is_up_to_date(self, target: str) -> bool:
        """Return True if this run has found a target up to date."""
        return target in self._fresh

    def are_up_to_date(self, targets: Iterable[str]) -> bool:
        """Return True if all targets are up to date, checking each once."""
        return all(
            target in self._fresh or target in self.finished or self.is_fresh(target)
            for target in targets
        )

    def up_to_date_models(
        self, models: Iterable[str], check: Collection[str]
    ) -> dict[str, dict[str, str]]:
        """Return the targets of entirely up-to-date models, with their status.

        Models in ``check`` are checked in full if no earlier run has found them up to date.
        """
        # with the executor, which other commands need not load
        from buildsys.execution.up_to_date_models import PlannedModel

        texts = {model: self.project.models[model].text for model in models}
        self.is_run = True
        try:
            found = self.executor.models.find(texts)
            unknown = [model for model in check if model not in found]
            planned = ((model, list(self.actions.of(model).values())) for model in unknown)
            found |= self.executor.models.check(
                {name: PlannedModel(texts[name], actions) for name, actions in planned}
            )
        except (BuildsysError, OSError, ValueError):  # the targets run, and fail with it
            return {}
        if self.remeasures_noisy:
            found = {name: ends for name, ends in found.items() if _NOISY not in ends.values()}
        for targets in found.values():
            self._fresh.update(targets)
        return found

    def shortfall(self, target: str) -> str:
        """Return "unavailable" or "noisy" for a target that ended so, now or earlier, else ""."""
        finished = self.finished.get(target)
        status = finished.status if finished else self._fresh.get(target, "")
        return status if status in (_UNAVAILABLE, _NOISY) else ""

    def recorded_reason(self, target: str) -> str:
        """Return the recorded reason of an unavailable or noisy target."""
        result = self.result(target)
        return with_hint(str(result.get("reason") or ""), str(result.get("hint") or ""))

    def stale_reason(self, target: str) -> str:
        """Return the reason for running a target, in a few words."""
        from buildsys.execution.stale_reasons import ASKED_FOR, summarize_reasons

        if target in self._fresh:
            return ASKED_FOR
        try:
            return summarize_reasons(self.executor.examine(target).reasons)
        except (BuildsysError, OSError, ValueError):
            return ""

    def build(self, target: str) -> None:
        """Run one target, even if it is up to date.

        Raises: BuildsysError: the target failed, as recorded in ``finished``.
        KeyboardInterrupt: the run was interrupted.
        """
        self._raise_if_interrupted()
        started = time.monotonic()
        with self._idle:
            self._busy += 1
        try:
            self.finished[target] = self._run(target)
        except Exception as error:
            from buildsys.execution.run_records import Outcome

            self._raise_if_interrupted()
            taken = getattr(error, "seconds", None)  # by the stage, as reports have it
            seconds = time.monotonic() - started if taken is None else taken
            problem, hint = getattr(error, "problem", str(error)), getattr(error, "hint", "")
            kind = type(error).__name__
            self.finished[target] = Outcome(target, "failed", seconds, problem, hint, error=kind)
            code = getattr(error, "exit_code", BuildsysError.exit_code)
            self.exit_code = max(self.exit_code, code)
            raise
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def _run(self, target: str) -> Outcome:
        """Run a target; repeat a flaky one of a nightly run once."""
        options: dict[str, Any] = {"force": target in self._fresh}
        if target in self.rebuilds:
            options = {"force": True, "request": self.rebuilds[target]}
        try:
            return self.executor.run(target, **options)
        except BuildsysError as error:
            action = self.actions[target]
            flaky = self.project.models[action.model].data["flaky"]
            if self.interrupted or not self.repeats_flaky or action.stage not in flaky:
                raise
            self.first_failures[target] = str(error)
            return self.executor.run(target, **options)

    def explain(self, targets: Iterable[str]) -> dict[str, Explanation]:
        """Return the state of targets and dependencies, in build order."""
        from buildsys.execution.freshness import explain

        checker = self.read_only_checker()
        with no_garbage_collection():
            needed = self.in_order(self.needed(targets))
            after = {target: self.actions[target].after for target in needed}
            return explain((checker.examine(self.actions[target]) for target in needed), after)

    def read_only_checker(self) -> FreshnessChecker:
        """Return a checker of the project, without writing anything."""
        from buildsys.execution.freshness import read_only_checker

        project = self.project
        folders = project.root, project.build, project.state
        return read_only_checker(*folders, self.trust)

    def result(self, target: str) -> dict[str, Any]:
        """Return the result file of a target, {} if unreadable.

        Raw samples are left out: a million of them would be most of this process's memory.
        """
        path = self.project.build / self.actions[target].outputs["result"].path
        try:
            content = read_limited(path, MAX_RESULT_BYTES)
            found = json.loads(_LONG_LIST.sub(b"[]", content))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def log(self, target: str) -> Path:
        """Return the path of a target's full log."""
        result = self.project.build / self.actions[target].outputs["result"].path
        return result.with_suffix(".log")

    def keep_traceback(self, target: str, error: BaseException) -> Path:
        """Write a traceback to a file and return its path."""
        folder = self.project.state / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{target.replace(':', '-')}-{os.getpid()}.log"
        path = folder / name
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        return path

    def interrupt(self, exit_code: int) -> None:
        """Stop all workers and all waiting; whoever builds then gets a KeyboardInterrupt.

        Called from a separate thread (see ``interruption``).
        """
        self.interrupted = exit_code
        if "executor" in vars(self):
            self.executor.stop()
        if "_pool" in vars(self):
            self._pool.close()

    def _raise_if_interrupted(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt

    def ignored(self) -> frozenset[str]:
        """Read the targets that doit skips; a damaged list is reported by doit's backend."""
        with contextlib.suppress(OSError, ValueError):
            return read_marks(self.project.state / FILE)
        return frozenset()

    def forget(self, name: str) -> None:
        """Drop the records of a target or group, of all targets without a name.

        Accepted baselines of gates stay.
        """
        for target in self.members(name) if name else self.actions:
            has_baseline = self.actions[target].baseline is not None
            self.executor.ledger.forget(target, keep_records=has_baseline)

    def close(self) -> None:
        """Stop the workers, and wait a moment for interrupted threads."""
        super().close()
        with self._idle:
            self._idle.wait_for(lambda: not self._busy, timeout=_CLOSE_LIMIT_S)
