"""One project as one doit process works on it: its targets, what became of each, and who builds them."""

from __future__ import annotations

import atexit
import json
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from buildsys.errors import BuildsysError
from buildsys.execution.builder_versions import builder_versions
from buildsys.plan.project_plan import ProjectPlan, model_of

if TYPE_CHECKING:
    from buildsys.execution.executor import Executor, Outcome
    from buildsys.manifest.project import Project
    from buildsys.store.shared_cache import SharedCache
    from buildsys.workers.client.pool import WorkerPool

_CLOSING_S = 5.0  # how long stages that were interrupted may take to notice
_LONG_LIST = re.compile(
    rb"\[[-+.0-9eE, ]{1000,}\]"
)  # of numbers, on one line as our writer puts them


@dataclass(frozen=True)
class Finished:
    """How a target ended in this process."""

    status: str  # passed | unavailable | failed
    seconds: float
    reason: str = ""
    hint: str = ""
    elsewhere: bool = False  # another run had built it when its turn came: nothing was run here
    restored: bool = False  # it came from the store: nothing was run here


class Session:
    """The targets of a project and the executor behind them, which is made when it is first asked.

    Loading costs nothing: models are planned when they are asked for. All methods may be called from the threads of
    ``doit -n``.
    """

    jobs: ClassVar[int] = (
        1  # that this process runs at a time (``doit -n``), known before the project is loaded
    )

    def __init__(self, project: Project) -> None:
        self.project = project
        self.actions = ProjectPlan(project.models, builder_versions(project.root, project.state))
        self.finished: dict[str, Finished] = {}
        self.progress: Callable[[str, str], None] = (
            _say_nothing  # (target, message), from any thread
        )
        self.stale: Callable[[str, str], None] = (
            _say_nothing  # (target, why it runs), from any thread
        )
        self.waits: Callable[[str, str], None] = (
            _say_nothing  # (target, for which process), from any thread
        )
        self.exit_code = 0  # of the worst failure so far
        self.judging = (
            False  # doit has asked whether a target is up to date: it is not forgetting or cleaning
        )
        self.cleaned: set[str] = (
            set()
        )  # by `doit clean`, which names a target again with each of its groups
        self.settled_targets: Sequence[
            str
        ] = ()  # that this run was asked for and has nothing to do for, without tasks
        self.looked_back = (
            False  # for what a run that did not get through has left of earlier passes
        )
        self._fresh: set[str] = set()
        self._idle = threading.Condition()
        self._busy = 0

    @cached_property
    def _pool(self) -> WorkerPool:
        from buildsys.workers.client.pool import WorkerPool

        atexit.register(self.close)  # with another reporter (`doit -r json`) nobody else does it
        return WorkerPool(self.project.state)

    @cached_property
    def executor(self) -> Executor:
        """The executor of this project; nothing is started before a stage runs."""
        from buildsys.execution.build_cache import store_folder
        from buildsys.execution.executor import Executor
        from buildsys.manifest.project_settings import timing_caches_folder
        from buildsys.store.object_store import Store

        project = self.project
        return Executor(
            project.root,
            project.build,
            project.state,
            self.actions,
            pool=self._pool,
            store=Store(store_folder(project.state)),
            remote=_shared_cache(project),
            timing_caches=timing_caches_folder(project.root, project.configs, project.state),
            threads=self._share(),
            on_event=self._take_event,
        )

    def _share(self) -> int:
        """Return the threads of each job: more than there are cores spin against each other and stand still."""
        return 0 if self.jobs <= 1 else max(1, len(os.sched_getaffinity(0)) // self.jobs)

    def is_fresh(self, target: str) -> bool:
        """Tell whether a target has nothing to do.

        A problem met while looking is not told here: the target then runs, meets it again and fails with it.
        """
        self.judging = True
        try:
            fresh = self.executor.is_fresh(target)
        except (BuildsysError, OSError, ValueError):
            return False
        if fresh:
            self._fresh.add(target)
        return fresh

    def are_settled(self, targets: Iterable[str]) -> bool:
        """Tell whether none of ``targets`` has anything to do, without looking twice in one process."""
        return all(
            target in self._fresh or target in self.finished or self.is_fresh(target)
            for target in targets
        )

    def settled(self, models: Iterable[str], judge: Collection[str]) -> dict[str, list[str]]:
        """Return all targets of those models that have nothing to do at all, without planning them where possible.

        Models in ``judge`` are looked at in full where no earlier run has left a verdict.
        """
        from buildsys.execution.up_to_date_models import (
            PlannedModel,  # with the executor, which other commands need not load
        )

        texts = {model: self.project.models[model].text for model in models}
        self.judging = True
        try:
            settled = self.executor.remembered_models(texts)
            unknown = [model for model in judge if model not in settled]
            if unknown:
                planned = ((model, list(self.actions.of(model).values())) for model in unknown)
                settled |= self.executor.check_models(
                    {name: PlannedModel(texts[name], actions) for name, actions in planned}
                )
        except (BuildsysError, OSError, ValueError):  # the targets run, and meet it again
            return {}
        for targets in settled.values():
            self._fresh.update(targets)
        return settled

    def stale_reason(self, target: str) -> str:
        """Return why a target runs, in a few words."""
        from buildsys.execution.stale_reasons import summarize_reasons

        if target in self._fresh:
            return "asked for"
        try:
            return summarize_reasons(self.executor.examine(target).reasons)
        except (BuildsysError, OSError, ValueError):
            return ""

    def build(self, target: str) -> None:
        """Run one target; one that is up to date runs only because it was asked for (``doit -a``).

        Raises: BuildsysError: the target failed; ``finished`` says so as well.
        """
        started = time.monotonic()
        with self._idle:
            self._busy += 1
        try:
            outcome = self.executor.run(target, force=target in self._fresh)
        except Exception as error:
            self.finished[target] = Finished("failed", time.monotonic() - started, str(error))
            self.exit_code = max(
                self.exit_code, getattr(error, "exit_code", BuildsysError.exit_code)
            )
            raise
        else:
            self.finished[target] = _finished(outcome)
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def forget(self, targets: Iterable[str]) -> None:
        """Drop what is recorded of ``targets``, so that they run again."""
        for target in targets:
            self.executor.forget(target)

    def needed(self, targets: Iterable[str]) -> dict[str, None]:
        """Return targets and all that has to be made before them, as the keys of a map; plans no other model."""
        reached: dict[str, None] = {}
        waiting = list(targets)
        while waiting:
            target = waiting.pop()
            if target not in reached:
                reached[target] = None
                action = self.actions[target]
                waiting += (*action.after, *action.order)
        return reached

    def members(self, name: str) -> list[str]:
        """Return the targets behind a task name: a target, a group such as ``build:MODEL``, or a whole stage."""
        if name in self.actions:
            return [name]
        model = name.partition(":")[2]
        return self.members_among(name, self.actions.of(model) if model else self.actions)

    def members_among(self, name: str, targets: Iterable[str]) -> list[str]:
        """Return those of ``targets`` that belong to a group."""
        stage, _, model = name.partition(":")
        return [
            target
            for target in targets
            if (stage == "build" or target.startswith(f"{stage}:"))
            and (not model or model_of(target) == model)
        ]

    def result(self, target: str) -> dict[str, Any]:
        """Return a target's result file as it lies on disk, {} where there is none to read.

        Raw samples, of which there may be a million, are left out: they would be most of this process's memory.
        """
        path = self.project.build / self.actions[target].outputs["result"].path
        try:
            found = json.loads(_LONG_LIST.sub(b"[]", path.read_bytes()))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def files(self, target: str) -> list[Path]:
        """Return the files that lie in the build folder because of a target: recorded, declared, and its log."""
        declared = {output.path for output in self.actions[target].outputs.values()}
        paths = {self.project.build / path for path in declared | self.executor.owned(target)} | {
            self.log(target)
        }
        return sorted(path for path in paths if path.is_file() or path.is_symlink())

    def log(self, target: str) -> Path:
        """Return where a target's full log lies."""
        return (self.project.build / self.actions[target].outputs["result"].path).with_suffix(
            ".log"
        )

    def keep_traceback(self, target: str, error: BaseException) -> Path:
        """Write down an unexpected error with its traceback; return the file."""
        folder = self.project.state / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        path = (
            folder
            / f"{time.strftime('%Y%m%d-%H%M%S')}-{target.replace(':', '-')}-{os.getpid()}.log"
        )
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        return path

    def close(self) -> None:
        """End the workers and all waiting, and give threads that were interrupted a moment to notice."""
        if "_pool" in vars(self):
            self._pool.close()
        if "executor" in vars(self):
            self.executor.close()
        with self._idle:
            self._idle.wait_for(lambda: not self._busy, timeout=_CLOSING_S)

    def _take_event(self, target: str, event: Mapping[str, Any]) -> None:
        if event["event"] == "progress":
            self.progress(target, event["message"])
        elif event["event"] == "stale":
            self.stale(target, event["reason"])
        elif event["event"] == "waiting":
            self.progress(target, f"waiting for {event['holder']}")
            if event["elsewhere"]:
                self.waits(target, event["holder"])


def _shared_cache(project: Project) -> SharedCache | None:
    from buildsys.manifest.project_settings import shared_cache

    settings = shared_cache(project.root, project.configs)
    if settings is None:
        return None
    from buildsys.store.shared_cache import SharedCache, SharedCacheSettings
    from buildsys.store.state_db import warn_on_stderr

    return SharedCache(SharedCacheSettings(**settings), warn_on_stderr)


def _say_nothing(target: str, message: str) -> None:
    """Drop a progress message."""


def _finished(outcome: Outcome) -> Finished:
    return Finished(
        outcome.status,
        outcome.seconds,
        outcome.reason,
        outcome.hint,
        outcome.waited,
        outcome.restored,
    )
