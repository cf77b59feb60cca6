"""Jobs for several targets of a model, one after another.

A scheduler takes seconds to minutes to start a job, so a job that has answered waits a moment for
the next CPU stage of its model. Only the project knows which one that is, and if it has to run: it
depends on the outputs of the stage before.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from buildsys.errors import TemporaryError, WorkerDied
from buildsys.execution.executors.interface import (
    ENDED,
    LOST,
    JobExecutor,
    JobState,
    RemoteJob,
)
from buildsys.execution.executors.watcher import Watcher
from buildsys.execution.job_answer import is_name
from buildsys.plan.action import Action, Needs
from buildsys.store.record_file import DIGEST
from buildsys.store.shared_cache import SharedCache

STOPPED = "no job can be started: the run was ended"
LINGERS_AFTER = (0, 1, 2, 69)  # exit codes of a machine that can run further targets
_START_S = 300.0  # before and after a stage, so that its own time limit comes first


@dataclass(frozen=True)
class Order:
    """What a job builds next."""

    request: str  # digest
    answer: str  # name
    rebuild: bool
    linger: float  # seconds to wait for another order after it

    def encode(self) -> bytes:
        """Return the order as JSON."""
        return json.dumps(asdict(self)).encode()


def decode_order(content: bytes) -> Order | None:
    """Return the order in some bytes, None if it is none."""
    try:
        order = Order(**json.loads(content))
        is_one = DIGEST.fullmatch(order.request) and is_name(order.answer)
        return order if is_one and order.rebuild in (True, False) and order.linger >= 0 else None
    except (ValueError, TypeError, RecursionError):
        return None


@dataclass(eq=False)
class ModelJob:
    """The job of a model at an executor, for one target at a time."""

    left: set[str] = field(default_factory=set)  # targets that may still have to be built
    time_s: float = 0.0  # limit for all of them, 0 for none
    turn: threading.Lock = field(default_factory=threading.Lock)
    handle: str = ""  # of the executor, once it has started
    answer: str = ""  # name of its last one


def job_key(action: Action) -> tuple[str, Needs] | None:
    """Return the key of an action's shared job, None without one.

    Jobs with GPUs are not shared: a GPU must not wait for the next target.
    """
    needs = action.needs
    alone = action.measures or needs.exclusive or action.baseline is not None
    if alone or action.uses_gpu:
        return None
    return action.model, needs


def time_limit_s(action: Action) -> float:
    """Return the time limit for a job of an action, 0 for none."""
    if action.needs.time_s or not action.timeout_s:
        return action.needs.time_s
    return action.timeout_s + _START_S


class JobSlots:
    """The number of jobs of an executor. Thread-safe.

    A job that has answered keeps its slot while it waits for the next target, ``linger_s``.
    """

    def __init__(self, count: int, linger_s: float) -> None:
        self._free = count
        self._linger_s = linger_s
        self._resting: dict[ModelJob, float] = {}  # with the time of its end, in its order
        self._changed = threading.Condition()

    def take(self, on_wait: Callable[[], None]) -> str:
        """Take a slot; return the handle of its ended job, or ""."""
        with self._changed:
            is_waiting = False
            while not self._free:
                job, end = next(iter(self._resting.items()), (None, math.inf))
                wait_s = end - time.monotonic()
                if job is not None and wait_s <= 0:
                    del self._resting[job]
                    return job.handle
                if not is_waiting:
                    on_wait()
                is_waiting = True
                self._changed.wait(None if job is None else wait_s)
            self._free -= 1
            return ""

    def release(self) -> None:
        """Give a slot back."""
        with self._changed:
            self._free += 1
            self._changed.notify()

    def rest(self, job: ModelJob) -> None:
        """Let a job wait for its next target."""
        with self._changed:
            self._resting[job] = time.monotonic() + self._linger_s
            self._changed.notify()

    def resume(self, job: ModelJob) -> bool:
        """Return True if a job was resting; it is not any more."""
        with self._changed:
            return self._resting.pop(job, None) is not None


@dataclass(frozen=True)
class Place:
    """A connected executor with its jobs. Thread-safe."""

    executor: JobExecutor
    watcher: Watcher
    slots: JobSlots
    url: str  # of the shared cache, as its machines name it
    linger_s: float
    stopped: threading.Event  # the run ends
    jobs: dict[tuple[str, Needs], ModelJob] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def job_of(self, action: Action, open_actions: Callable[[str], Iterable[Action]]) -> ModelJob:
        """Return the job for an action; it may run already."""
        key = job_key(action)
        if key is None or not self.linger_s:
            return ModelJob(time_s=time_limit_s(action))
        with self.guard:
            if key not in self.jobs:
                there = (one for one in open_actions(action.model) if job_key(one) == key)
                members = {one.target: one for one in there if one.executor == action.executor}
                limits = [time_limit_s(one) for one in {**members, action.target: action}.values()]
                self.jobs[key] = ModelJob({*members}, sum(limits) if all(limits) else 0.0)
            return self.jobs[key]

    def start(
        self, shared: ModelJob, job: RemoteJob, order: Order, on_wait: Callable[[], None]
    ) -> None:
        """Start a job, as soon as it may. Raises: StageError, TemporaryError."""
        ended = self.slots.take(on_wait)
        try:
            if ended:
                self.executor.cancel(ended)
                self.executor.forget(ended)
            if self.stopped.is_set():
                raise WorkerDied(STOPPED)
            arguments = [*job.arguments, "--store", self.url, "--answer", order.answer]
            arguments += [f"--linger={order.linger:g}"] if order.linger else []
            shared.handle = self.executor.submit(job._replace(arguments=tuple(arguments)))
            shared.answer = ""
        except BaseException:
            self.slots.release()
            raise

    def follow(self, shared: ModelJob, order: Order, store: SharedCache) -> bool:
        """Give an order to a job, if it waits for one. Raises: TemporaryError."""
        if not self.slots.resume(shared):
            return False
        try:
            store.write_order(shared.answer, order.encode())
        except BaseException:
            self._end(shared)
            raise
        return True

    def leave(self, shared: ModelJob, order: Order, state: JobState | None, code: int) -> None:
        """Let a job wait for its next order, or end.

        ``code`` is the exit code of its answer.
        """
        if state is not None and state.phase in (ENDED, LOST):
            self.executor.forget(shared.handle)
            self.slots.release()
        elif state is not None and order.linger and shared.left and code in LINGERS_AFTER:
            shared.answer = order.answer
            self.slots.rest(shared)
        else:
            self._end(shared)

    def settle(self, action: Action) -> None:
        """Let a model's job end if this target was its last."""
        key = job_key(action)
        with self.guard:
            shared = self.jobs.get(key) if key else None
            if key is None or shared is None:
                return
            shared.left.discard(action.target)
            if shared.left:
                return
            del self.jobs[key]
        if self.slots.resume(shared):
            self._end(shared)

    def _end(self, shared: ModelJob) -> None:
        try:
            with suppress(TemporaryError):  # it ends by itself
                self.executor.cancel(shared.handle)
                self.executor.forget(shared.handle)
        finally:
            self.slots.release()
