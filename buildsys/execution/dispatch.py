"""Dispatch: targets built by executors, with the shared cache in between.

A target becomes a request in the shared cache. An executor runs ``run-action`` with its digest on
another machine, which leaves its answer in the cache. Lost and killed jobs are submitted again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.errors import StageError, TemporaryError, WorkerDied
from buildsys.execution.action_key import ActionKey
from buildsys.execution.action_request import (
    encode_request,
    make_request,
    sign_request,
    store_content,
)
from buildsys.execution.baselines import Baselines
from buildsys.execution.executors.interface import (
    ENDED,
    LOST,
    RUNNING,
    JobExecutor,
    JobState,
    RemoteJob,
    connect,
)
from buildsys.execution.executors.watcher import Watcher
from buildsys.execution.job_answer import ERROR, Answer, check_files, decode_answer, new_name
from buildsys.execution.remote_environments import RemoteEnvironments
from buildsys.history.recorder import Checkout
from buildsys.plan.action import Action
from buildsys.store.ledger import OutputFile
from buildsys.store.object_store import Store
from buildsys.store.publish import make_folders
from buildsys.store.shared_cache import SharedCache
from buildsys.store.signatures import SigningKey, TrustPolicy
from buildsys.workers.client.pool import Elsewhere, JobReply

ATTEMPTS = 3
_MISMATCH = 3  # exit code of run-action on a machine with another environment
_RETRIED = (75, 130, 137, 143)  # temporary problem, interrupted, killed
_LOG_LINES = 20
_START_S = 300.0  # before and after a stage, so that its own time limit comes first
Event = dict[str, Any]
OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class _Place:
    """A connected executor."""

    executor: JobExecutor
    watcher: Watcher
    slots: threading.Semaphore
    url: str  # of the shared cache, as its machines name it


class Dispatcher:
    """Builds targets on the machines of executors. Thread-safe.

    ``executors`` are those of project.yaml, ``url`` that of ``shared``.
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
    ) -> None:
        self._settings = executors
        self._project, self._build = project, build
        self._shared, self._url, self._store = shared, url, store
        self._environments, self._baselines = environments, baselines
        self._signing_key, self._trust, self._checkout = signing_key, trust, checkout
        self._places: dict[str, _Place] = {}
        self._guard = threading.Lock()
        self._asking: dict[str, threading.Lock] = {name: threading.Lock() for name in executors}
        self._is_stopped = False

    def learn(self, action: Action, others: Iterable[Action], on_event: OnEvent) -> None:
        """Ask an executor's machines for their libraries, unless known.

        ``others`` are asked about at the same time.
        Raises: StageError, TemporaryError.
        """
        name = action.executor
        with self._asking[name]:
            if not self._environments.unanswered(name, [action]):
                return
            on_event({"event": "progress", "message": f"asking {name} for its libraries"})
            there = [action, *(other for other in others if other.executor == name)]
            questions = json.dumps(self._environments.unanswered(name, there)).encode()
            with self._store.lock(shared=True):
                digest = self._push(questions, [])
            # a scheduler shows a job only the GPUs that it asked for
            needs = max((one.needs for one in there), key=attrgetter("gpu_count"))
            needs = needs._replace(exclusive=False, time_s=0.0)
            job = RemoteJob(f"describe-{name}", ("describe-machine", digest), needs)
            answer = self._perform(name, job, digest, on_event)
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
        job = self._job(action, request, rebuild)
        answer = self._perform(action.executor, job, request, on_event)
        where = answer.machine.get("name", action.executor)
        gpus = answer.machine.get("gpus", "")
        on_event({"event": "placed", "where": f"{where} ({gpus})" if gpus else where})
        make_folders([log.parent])
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
            return self._push(encode_request(request), request.objects)

    def _job(self, action: Action, request: str, rebuild: bool) -> RemoteJob:
        """Return the job for a request."""
        name = "-".join(filter(None, (action.stage, action.model, action.variant)))
        words = ["run-action", request, *(["--rebuild"] if rebuild else [])]
        if self._signing_key is not None:
            keys = sorted(self._trust.keys.trusted - self._trust.keys.revoked)
            words += [f"--trusted-key={key}" for key in keys]
        needs = action.needs
        if not needs.time_s and action.timeout_s:
            needs = needs._replace(time_s=action.timeout_s + _START_S)
        return RemoteJob(
            "".join(letter if letter.isalnum() else "-" for letter in name),
            tuple(words),
            needs,
            exclusive=action.measures or needs.exclusive,
        )

    def _write_log(self, log: Path, title: str, file: OutputFile) -> None:
        """Write the log of a stage, if possible."""
        with suppress(StageError, OSError), TemporaryDirectory() as folder:
            self._fetch({"log": file}, Path(folder))
            log.write_bytes(title.encode() + Path(folder, "log").read_bytes())

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
            self._is_stopped = True
            for place in self._places.values():
                place.watcher.stop()

    def close(self) -> None:
        """End all jobs."""
        self.stop()
        for place in self._places.values():
            with suppress(StageError):
                place.executor.close()

    def _perform(self, name: str, job: RemoteJob, request: str, on_event: OnEvent) -> Answer:
        """Run a job on a machine of an executor; return its answer to the request."""
        place = self._place(name)
        problem = ""
        with _holding(place.slots, partial(on_event, _waiting(name))):
            for _ in range(ATTEMPTS):
                answer_name = new_name()
                arguments = (*job.arguments, "--store", place.url, "--answer", answer_name)
                handle = place.executor.submit(job._replace(arguments=arguments))
                state = self._wait(place, name, handle, on_event)
                content = self._shared.read_answer(answer_name)
                if content is not None:
                    self._shared.remove_answer(answer_name)
                    answer = decode_answer(content, answer_name, request, self._trust)
                    if answer.exit_code not in _RETRIED:
                        return answer
                    problem = answer.reason
                else:
                    problem = self._problem(place, handle, state)
                on_event({"event": "progress", "message": f"trying again: {problem}"})
        raise TemporaryError(f"{name}: {ATTEMPTS} attempts failed: {problem}", "run it again")

    def _wait(self, place: _Place, name: str, handle: str, on_event: OnEvent) -> JobState:
        def show(state: JobState) -> None:
            if state.phase == RUNNING:
                where = state.machine or name
                on_event({"event": "started", "pid": 0})
                on_event({"event": "placed", "where": where})
                on_event({"event": "progress", "message": f"on {where}"})
            elif state.phase not in (ENDED, LOST):
                on_event(_waiting(name, state.reason))

        try:
            state = place.watcher.wait(handle, show)
        except BaseException:
            place.executor.cancel(handle)
            raise
        if state is None:
            place.executor.cancel(handle)
            raise WorkerDied("the target was stopped because the run was ended")
        return state

    def _problem(self, place: _Place, handle: str, state: JobState) -> str:
        """Return why a job has no answer. Raises: StageError: none will."""
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

    def _place(self, name: str) -> _Place:
        with self._guard:
            if self._is_stopped:
                raise WorkerDied("no job can be started: the run was ended")
            if name not in self._places:
                settings = self._settings[name]
                executor = connect(name, settings, self._project)
                slots = threading.Semaphore(settings["jobs"])
                url = settings.get("store") or self._url
                self._places[name] = _Place(executor, Watcher(executor), slots, url)
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
def _holding(slots: threading.Semaphore, on_wait: Callable[[], None]) -> Iterator[None]:
    if not slots.acquire(blocking=False):
        on_wait()
        slots.acquire()
    try:
        yield
    finally:
        slots.release()
