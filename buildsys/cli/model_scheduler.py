"""Scheduling of whole models, planned one by one.

doit keeps a task and a node of every target until the end of a run, 5 kB of them, and the plan of a
target takes as much. Ten thousand models would need more than a gigabyte. So a model becomes tasks
when a place has room for it, and they are dropped when its last target has ended.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from queue import Queue, SimpleQueue
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from doit.control import ExecNode, TaskControl, TaskDispatcher
from doit.runner import Runner
from doit.task import Task

from buildsys.system.turns import return_free_memory, taken_in_turns, turn, waiting

_LEAST_OPEN = 64  # models at a time
_TURNS_FROM = 16  # threads: so many are not for stages on this machine
_MOST_ACTIVE = 2  # targets of one job: its turn is the dispatcher's
_TRIMMED_EVERY = 500  # targets
_OPEN_PER_JOB = 1.5  # so that places which are waited for do not keep others idle


class Models(NamedTuple):
    """The models to build."""

    names: Sequence[str]
    tasks_of: Callable[[str], list[Task]]  # in build order; the last one is the model
    place_of: Callable[[str], str]  # of a target
    jobs: Mapping[str, int] = MappingProxyType({})  # at a time, by place; not listed: 1
    job_of: Callable[[str], Hashable] = lambda _: None  # of targets that take turns, else None

    @property
    def most_open(self) -> int:
        """The number of models at a time."""
        return max(_LEAST_OPEN, round(_OPEN_PER_JOB * sum(self.jobs.values())))


class Control(TaskControl):  # type: ignore[misc]  # doit has no type information
    """Doit's tasks of a run; those of whole models are made later."""

    models: ClassVar[Models | None] = None  # of the next run

    def task_dispatcher(self) -> TaskDispatcher:
        """Return what decides the order of targets."""
        models, Control.models = Control.models, None
        return super().task_dispatcher() if models is None else ModelScheduler(models)


class ModelScheduler(TaskDispatcher):  # type: ignore[misc]
    """Starts targets of earlier models first, up to each place's jobs.

    Each place has a separate queue, so targets that wait for one place leave no other one idle.
    Of one job's targets one runs and one is prepared, so that the job need not wait for it. Others
    take no room either.
    """

    def __init__(self, models: Models) -> None:
        super().__init__({}, {}, [f"build:{name}" for name in models.names])
        self._models = models
        self._unopened = deque(enumerate(models.names))
        self._open: dict[str, list[str]] = {}  # task of a model -> its targets
        self._order: dict[str, tuple[int, int]] = {}
        self._groups: deque[ExecNode] = deque()
        self._runnable: dict[str, list[tuple[tuple[int, int], str]]] = {}  # heaps, by place
        self._places: dict[str, str] = {}  # of targets that have started
        self._started = Counter[str]()  # by place
        self._active = Counter[Hashable]()  # targets of a job that have started
        self._busy: dict[Hashable, list[str]] = {}  # job -> targets that wait for it

    def _dispatcher_generator(self, selected_tasks: Sequence[str]) -> Iterator[Any]:
        """Yield nodes to run or "hold on"; receive ended nodes."""
        del selected_tasks
        while True:
            while self.ready:
                self._advance(self.ready.popleft())
            node = self._next()
            if node is None and self._unopened and len(self._open) < self._models.most_open:
                self._open_model(*self._unopened.popleft())
                continue
            if node is None and not self._open:
                return
            ended = yield node or "hold on"
            if ended is not None:
                self._update_waiting(ended)
                self._forget(ended)

    def _open_model(self, number: int, name: str) -> None:
        tasks = self._models.tasks_of(name)
        for index, task in enumerate(tasks):
            self.tasks[task.name] = task
            self._order[task.name] = number, index
        group = tasks[-1].name
        self._open[group] = [task.name for task in tasks]
        self._advance(self._gen_node(None, group))

    def _advance(self, node: ExecNode) -> None:
        """Advance a node until it waits or can run."""
        while (step := node.step()) is not None:
            if isinstance(step, ExecNode):
                self._advance(step)
            elif isinstance(step, Task):
                self._queue(node)
                return
            else:  # "wait"
                self.waiting.add(node)
                return

    def _queue(self, node: ExecNode) -> None:
        name = node.task.name
        if node.task.has_subtask:
            self._groups.append(node)
            return
        queue = self._runnable.setdefault(self._models.place_of(name), [])
        heapq.heappush(queue, (self._order[name], name))

    def _next(self) -> ExecNode | None:
        """Return a runnable node."""
        if self._groups:
            return self._groups.popleft()
        jobs = self._models.jobs
        for place, queue in self._runnable.items():
            while queue and (job := self._models.job_of(queue[0][1])) in self._busy:
                if self._active[job] < _MOST_ACTIVE:
                    return self._start(place)
                self._busy[job].append(heapq.heappop(queue)[1])
        first = [
            (queue[0], place)
            for place, queue in self._runnable.items()
            if queue and self._started[place] < jobs.get(place, 1)
        ]
        if not first:
            return None
        return self._start(min(first)[1])

    def _start(self, place: str) -> ExecNode:
        """Return a place's next node, which starts now."""
        _, name = heapq.heappop(self._runnable[place])
        self._places[name] = place
        job = self._models.job_of(name)
        if job is None or job not in self._busy:  # else it has room already
            self._started[place] += 1
        if job is not None:
            self._busy.setdefault(job, [])
            self._active[job] += 1
        return self.nodes[name]

    def _forget(self, node: ExecNode) -> None:
        """Forget an ended target, and an ended model with its tasks."""
        name = node.task.name
        if (place := self._places.pop(name, None)) is not None:
            job = self._models.job_of(name)
            waiting_for_it = self._busy.pop(job, [])
            self._active[job] -= 1
            if self._active[job] > 0:
                self._busy[job] = []
            else:
                self._started[place] -= 1
                del self._active[job]
            for other in waiting_for_it:
                self._queue(self.nodes[other])
        for member in self._open.pop(name, ()):
            del self.tasks[member], self.nodes[member], self._order[member]


class _Ended(NamedTuple):
    node: ExecNode
    failure: Any  # of doit, None for a success
    error: BaseException | None  # ends the run


class ThreadRunner(Runner):  # type: ignore[misc]
    """Doit's runner with threads, each asleep without a task.

    doit would wake all of them whenever a target ends.
    """

    def __init__(self, *arguments: Any) -> None:
        *others, self._most_threads = arguments
        super().__init__(*others)
        self._waiting: SimpleQueue[ExecNode | None] = SimpleQueue()
        self._ended: Queue[_Ended] = Queue()

    def run_tasks(self, task_dispatcher: TaskDispatcher) -> None:
        """Run all tasks."""
        with taken_in_turns(needed=self._most_threads > _TURNS_FROM):
            self._run_tasks(task_dispatcher)

    def _run_tasks(self, task_dispatcher: TaskDispatcher) -> None:
        threads: list[threading.Thread] = []
        running, ended, node = 0, 0, None
        try:
            while True:
                while running < self._most_threads and not self._stop_running:
                    node = self._next(task_dispatcher, node)
                    if node is None:
                        break
                    running += 1
                    if running > len(threads):
                        # daemons, as they may wait for something when the run is interrupted
                        threads.append(threading.Thread(target=self._work, daemon=True))
                        threads[-1].start()
                    self._waiting.put(node)
                    node = None
                if not running:
                    return
                with waiting():
                    node, failure, error = self._ended.get()
                running, ended = running - 1, ended + 1
                if ended % _TRIMMED_EVERY == 0:
                    return_free_memory()  # 15 MB after 100,000 targets
                if error is not None:
                    raise error
                self.process_task_result(node, failure)
        finally:
            for _ in threads:
                self._waiting.put(None)

    def _next(self, dispatcher: TaskDispatcher, ended: ExecNode | None) -> ExecNode | None:
        """Return a node to run, None if there is none now."""
        node = ended
        try:
            while not self._stop_running:
                node = dispatcher.generator.send(node)
                if node == "hold on":
                    return None
                if self.select_task(node, dispatcher.tasks):
                    return node
        except StopIteration:
            pass
        return None

    def _work(self) -> None:
        while (node := self._waiting.get()) is not None:
            try:
                with turn():
                    failure = self.execute_task(node.task)
                self._ended.put(_Ended(node, failure, None))
            except BaseException as error:
                self._ended.put(_Ended(node, None, error))
