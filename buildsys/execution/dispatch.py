"""Dispatch: targets built by executors, with the shared cache in between.

A target becomes a request in the shared cache. An executor runs ``run-action`` with its digest on
another machine, which leaves its answer in the cache. Lost and killed jobs are submitted again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from buildsys.errors import StageError, TemporaryError, WorkerDied
from buildsys.execution.action_key import ActionKey
from buildsys.execution.action_request import (
    checked_content,
    make_request,
    sign_request,
    store_content,
)
from buildsys.execution.baselines import Baselines
from buildsys.execution.executors.interface import (
    ENDED,
    LOST,
    RUNNING,
    JobState,
    RemoteJob,
    connect,
)
from buildsys.execution.executors.watcher import Watcher
from buildsys.execution.job_answer import ERROR, Answer, check_files, decode_answer, new_name
from buildsys.execution.model_jobs import STOPPED, JobSlots, ModelJob, Order, Place
from buildsys.execution.remote_environments import RemoteEnvironments
from buildsys.history.recorder import Checkout
from buildsys.plan.action import Action
from buildsys.store.ledger import OutputFile
from buildsys.store.object_store import Store
from buildsys.store.publish import make_folders
from buildsys.store.shared_cache import SharedCache
from buildsys.store.signatures import SigningKey, TrustPolicy
from buildsys.system.turns import waiting
from buildsys.workers.client.pool import Elsewhere, JobReply

ATTEMPTS = 3
_MISMATCH = 3  # exit code of run-action on a machine with another environment
_RETRIED = (75, 130, 137, 143)  # temporary problem, interrupted, killed
_LOG_LINES = 20
Event = dict[str, Any]
OnEvent = Callable[[Event], None]


class Dispatcher:
    """Builds targets on the machines of executors. Thread-safe.

    ``executors`` are those of project.yaml, ``url`` that of ``shared``, ``open_actions``
    returns the actions of a model that this run may still build.
    """

    def __init__(
        self,
        executors: Mapping[str, Mapping[str, Any]],
        project: Path,
        build: Path,
        *,
        shared: SharedCache,
        url: str,
        store: Store,
        environments: RemoteEnvironments,
        baselines: Baselines,
        signing_key: SigningKey | None,
        trust: TrustPolicy,
        checkout: Callable[[], Checkout | None] = lambda: None,
        open_actions: Callable[[str], Iterable[Action]] = lambda _: (),
    ) -> None:
        self._open_actions = open_actions
        self._settings = executors
        self._project, self._build = project, build
        self._shared, self._url, self._store = shared, url, store
        self._environments, self._baselines = environments, baselines
        self._signing_key, self._trust, self._checkout = signing_key, trust, checkout
        self._places: dict[str, Place] = {}
        self._guard = threading.Lock()
        self._asking: dict[str, threading.Lock] = {name: threading.Lock() for name in executors}
        self._stopped = threading.Event()

    def learn(self, action: Action, others: Iterable[Action], on_event: OnEvent) -> None:
        """Ask an executor's machines for their libraries, unless known.

        ``others`` are asked about at the same time, and so are targets of the model that this run
        may build with as few GPUs.
        Raises: StageError, TemporaryError.
        """
        name = action.executor
        with _held(self._asking[name]):
            if not self._environments.unanswered(name, [action]):
                return
            on_event({"event": "progress", "message": f"asking {name} for its libraries"})
            count = action.needs.gpu_count
            more = (o for o in self._open_actions(action.model) if o.needs.gpu_count <= count)
            there = [action, *(other for other in (*others, *more) if other.executor == name)]
            questions = json.dumps(self._environments.unanswered(name, there)).encode()
            with self._store.lock(shared=True):
                digest = self._push(questions, [])
            # a scheduler shows a job only the GPUs that it asked for
            needs = max((one.needs for one in there), key=attrgetter("gpu_count"))
            needs = needs._replace(exclusive=False, time_s=0.0)
            job = RemoteJob(f"describe-{name}", ("describe-machine", digest), needs)
            answer = self._perform(name, ModelJob(), job, "", on_event)
            self._environments.remember(name, answer.environments)

    def build(
        self,
        action: Action,
        key: ActionKey,
        tree: Path,
        log: Path,
        *,
        on_event: OnEvent,
        rebuild: bool,
    ) -> JobReply:
        """Run a stage on another machine, with outputs in ``tree``.

        ``rebuild``: even if the shared cache has its outputs.

        Raises: StageError: the stage failed there, or the machine differs from what is known.
        TemporaryError: the executor or the cache cannot be reached.
        """
        request = self._request(action, key)
        place = self._place(action.executor)
        shared = place.job_of(action, self._open_actions)
        job = self._job(action, request, shared, rebuild)
        answer = self._perform(action.executor, shared, job, action.target, on_event)
        where = answer.machine.get("name", action.executor)
        gpus = answer.machine.get("gpus", "")
        on_event({"event": "placed", "where": f"{where} ({gpus})" if gpus else where})
        make_folders([log.parent])
        with suppress(StageError, OSError), self._store.lock(shared=True):  # all in one go
            self._shared.fetch([*answer.files.values(), *filter(None, [answer.log])], self._store)
        if answer.log is not None:
            self._write_log(log, f"# {action.target} ran on {where}\n", answer.log)
        if answer.status == ERROR:
            if answer.exit_code == _MISMATCH:  # the next run asks again
                self._environments.forget(action.executor)
            raise StageError(f"{answer.reason} (on {where})", answer.hint)
        check_files(answer, action)
        self._fetch(answer.files, tree)
        return JobReply(
            answer.status,
            answer.reason,
            answer.hint,
            dict(answer.figures),
            answer.seconds,
            log,
            answer.peak_rss_mib,
            elsewhere=Elsewhere(answer.machine, answer.key, answer.reads),
        )

    def _request(self, action: Action, key: ActionKey) -> str:
        """Request an action's target; return the digest of the request."""
        with self._store.lock(shared=True):
            request = make_request(
                action,
                key,
                self._project,
                self._build,
                self._store,
                baselines=self._baselines,
                source=self._checkout(),
            )
            if self._signing_key is not None:
                request = sign_request(request, self._signing_key)
            return self._push(checked_content(request), request.objects)

    def _job(self, action: Action, request: str, shared: ModelJob, rebuild: bool) -> RemoteJob:
        """Return the job for a request, if it starts one."""
        name = "-".join(filter(None, (action.stage, action.model, action.variant)))
        words = ["run-action", request, *(["--rebuild"] if rebuild else [])]
        if self._signing_key is not None:
            keys = sorted(self._trust.keys.trusted - self._trust.keys.revoked)
            words += [f"--trusted-key={key}" for key in keys]
        return RemoteJob(
            "".join(letter if letter.isalnum() else "-" for letter in name),
            tuple(words),
            action.needs._replace(time_s=shared.time_s),
            exclusive=action.measures or action.needs.exclusive,
        )

    def _write_log(self, log: Path, title: str, file: OutputFile) -> None:
        """Write the log of a stage, if possible."""
        with suppress(StageError, OSError):
            self._fetch({log.name: file}, log.parent)
            log.write_bytes(title.encode() + log.read_bytes())

    def _fetch(self, files: Mapping[str, OutputFile], folder: Path) -> None:
        """Write files of an answer into a folder.

        Raises: TemporaryError: one is missing or damaged. OSError.
        """
        with self._store.lock(shared=True):
            if not self._shared.fetch(files.values(), self._store):
                raise TemporaryError("outputs in the shared cache are damaged", "run it again")
            for name, file in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                self._store.fetch(file, folder / name)

    def stop(self) -> None:
        """Let all waits end."""
        with self._guard:
            self._stopped.set()
            for place in self._places.values():
                place.watcher.stop()

    def close(self) -> None:
        """End all jobs."""
        self.stop()
        for place in self._places.values():
            with suppress(StageError):
                place.executor.close()

    def settle(self, action: Action) -> None:
        """Let a model's job end after its last target.

        ``action`` is one that has been built, or that is up to date.
        """
        with self._guard:
            place = self._places.get(action.executor)
        if place is not None:
            place.settle(action)

    def _perform(
        self, name: str, shared: ModelJob, job: RemoteJob, target: str, on_event: OnEvent
    ) -> Answer:
        """Return the answer to a request.

        It comes from the job of its model, or from a new one.
        """
        place, request = self._place(name), job.arguments[1]
        problem = ""
        with _held(shared.turn, partial(on_event, _waiting(name, "the job of its model"))):
            shared.left.discard(target)
            linger_s = place.linger_s if shared.left else 0.0
            for attempt in range(ATTEMPTS + 1):
                order = Order(request, new_name(), "--rebuild" in job.arguments, linger_s)
                if attempt > 0:
                    with waiting():
                        place.start(shared, job, order, partial(on_event, _waiting(name)))
                elif not place.follow(shared, order, self._shared):
                    continue
                follows = attempt == 0
                answer, problem = self._wait(place, name, shared, order, on_event, follows=follows)
                if answer is not None and answer.exit_code not in _RETRIED:
                    return answer
                on_event({"event": "progress", "message": f"trying again: {problem}"})
        raise TemporaryError(f"{name}: {ATTEMPTS} attempts failed: {problem}", "run it again")

    def _wait(
        self,
        place: Place,
        name: str,
        shared: ModelJob,
        order: Order,
        on_event: OnEvent,
        *,
        follows: bool,
    ) -> tuple[Answer | None, str]:
        """Return a job's answer to an order, and the problem if there is no good one.

        Raises: StageError: another job would give none either.
        """

        def show(state: JobState) -> None:
            if state.phase == RUNNING:
                where = state.machine or name
                on_event({"event": "started", "pid": 0})
                on_event({"event": "placed", "where": where})
                on_event({"event": "progress", "message": f"on {where}"})
            elif state.phase not in (ENDED, LOST):
                on_event(_waiting(name, state.reason))

        answer = state = None
        try:
            state = place.watcher.wait(shared.handle, show, order.answer if order.linger else "")
            if state is None:
                raise WorkerDied("the target was stopped because the run was ended")
            content = self._shared.take_answer(order.answer, shared.answer)
            if content is not None:
                answer = decode_answer(content, order.answer, order.request, self._trust)
                return answer, answer.reason
            if follows:  # perhaps the job ended before its order came
                return None, "the job of its model ended"
            return None, self._problem(place, shared.handle, state)
        finally:
            place.leave(shared, order, state, -1 if answer is None else answer.exit_code)

    def _problem(self, place: Place, handle: str, state: JobState) -> str:
        """Return why a job has no answer. Raises: StageError: none will."""
        with waiting():
            lines = place.executor.log(handle).strip().splitlines()[-_LOG_LINES:]
        last = lines[-1] if lines else "it printed nothing"
        said = state.reason or last
        if state.phase == LOST:
            return f"the job was lost: {said}"
        if state.exit_code is None:  # its system ended it
            raise StageError(f"the job ended: {said}")
        problem = f"the job ended with exit code {state.exit_code}"
        if state.exit_code in _RETRIED:
            return f"{problem}: {said}"
        hint = "check that the executor's command runs buildsys of this version"
        raise StageError(f"{problem} and without an answer: {said}", hint)

    def _place(self, name: str) -> Place:
        with self._guard:
            if self._stopped.is_set():
                raise WorkerDied(STOPPED)
            if name not in self._places:
                settings = self._settings[name]
                executor = connect(name, settings, self._project)
                self._places[name] = Place(
                    executor,
                    Watcher(executor, self._shared.answers),
                    JobSlots(settings["jobs"], settings["linger"]),
                    settings.get("store") or self._url,
                    settings["linger"],
                    self._stopped,
                )
            return self._places[name]

    def _push(self, content: bytes, objects: Iterable[OutputFile]) -> str:
        """Add objects and, after them, a document to the cache; return its digest."""
        own = store_content(self._store, content)
        self._shared.push_objects([*objects, own], self._store)
        return own.digest


def _waiting(name: str, reason: str = "") -> Event:
    return {"event": "waiting", "holder": f"{name} ({reason})" if reason else name,
            "elsewhere": True}  # fmt: skip


@contextmanager
def _held(lock: threading.Lock, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    if not lock.acquire(blocking=False):
        on_wait()
        with waiting():
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
