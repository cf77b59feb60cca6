"""One project as one doit process works on it: its targets, what became of each, and who builds them."""

from __future__ import annotations

import atexit
import json
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from buildsys.errors import BuildsysError
from buildsys.graph.action import Action
from buildsys.graph.plan import plan_model

if TYPE_CHECKING:
    from buildsys.executor import Executor, Outcome
    from buildsys.manifest.project import Project
    from buildsys.worker.pool import WorkerPool

_CLOSING_S = 5.0  # how long stages that were interrupted may take to notice
_LONG_LIST = re.compile(rb"\[[-+.0-9eE, ]{1000,}\]")  # of numbers, on one line as our writer puts them


@dataclass(frozen=True)
class Finished:
    """How a target ended in this process."""

    status: str  # passed | unavailable | failed
    seconds: float
    reason: str = ""
    hint: str = ""
    elsewhere: bool = False  # another run had built it when its turn came: nothing was run here


class Session:
    """The targets of a project and the executor behind them, which is made when it is first asked.

    Loading costs nothing but the plan, so that listing tasks stays fast. All methods may be called from
    the threads of ``doit -n``.
    """

    jobs: ClassVar[int] = 1  # that this process runs at a time (``doit -n``), known before the project is loaded

    def __init__(self, project: Project) -> None:
        self.project = project
        self.actions: dict[str, Action] = {}
        for model in project.models.values():
            self.actions.update((action.target, action) for action in plan_model(model.data))
        self.finished: dict[str, Finished] = {}
        self.progress: Callable[[str, str], None] = _say_nothing  # (target, message), from any thread
        self.exit_code = 0  # of the worst failure so far
        self.judging = False  # doit has asked whether a target is up to date: it is not forgetting or cleaning
        self.cleaned: set[str] = set()  # by `doit clean`, which names a target again with each of its groups
        self._fresh: set[str] = set()
        self._idle = threading.Condition()
        self._busy = 0

    @cached_property
    def _pool(self) -> WorkerPool:
        from buildsys.worker.pool import WorkerPool

        atexit.register(self.close)  # with another reporter (`doit -r json`) nobody else does it
        return WorkerPool(self.project.state)

    @cached_property
    def executor(self) -> Executor:
        """The executor of this project; nothing is started before a stage runs."""
        from buildsys.executor import Executor

        project = self.project
        return Executor(
            project.root,
            project.build,
            project.state,
            self.actions,
            pool=self._pool,
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
        return all(target in self._fresh or target in self.finished or self.is_fresh(target) for target in targets)

    def stale_reason(self, target: str) -> str:
        """Return why a target runs, in a few words."""
        if target in self._fresh:
            return "asked for"
        try:
            return self.executor.stale_reason(target)
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
            self.exit_code = max(self.exit_code, getattr(error, "exit_code", BuildsysError.exit_code))
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

    def members(self, name: str) -> list[str]:
        """Return the targets behind a task name: a target, a group such as ``build:MODEL``, or a whole stage."""
        if name in self.actions:
            return [name]
        stage, _, model = name.partition(":")
        return [
            target
            for target, action in self.actions.items()
            if stage in ("build", action.stage) and model in ("", action.model)
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
        paths = {self.project.build / path for path in declared | self.executor.owned(target)} | {self.log(target)}
        return sorted(path for path in paths if path.is_file() or path.is_symlink())

    def log(self, target: str) -> Path:
        """Return where a target's full log lies."""
        return (self.project.build / self.actions[target].outputs["result"].path).with_suffix(".log")

    def keep_traceback(self, target: str, error: BaseException) -> Path:
        """Write down an unexpected error with its traceback; return the file."""
        folder = self.project.state / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{target.replace(':', '-')}-{os.getpid()}.log"
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
        elif event["event"] == "waiting":
            self.progress(target, f"waiting for {event['holder']}")


def _say_nothing(target: str, message: str) -> None:
    """Drop a progress message."""


def _finished(outcome: Outcome) -> Finished:
    return Finished(outcome.status, outcome.seconds, outcome.reason, outcome.hint, outcome.waited)
