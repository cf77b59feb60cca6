"""A project with its executor, made on first use."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from buildsys.cli.target_names import TargetNames
from buildsys.errors import BuildsysError, StageError, UsageError
from buildsys.execution.builder_versions import builder_versions
from buildsys.execution.executors.interface import LOCAL
from buildsys.plan.project_plan import ProjectPlan, model_of

if TYPE_CHECKING:
    from buildsys.execution.baselines import Baselines
    from buildsys.execution.dispatch import Dispatcher
    from buildsys.execution.executor import Executor
    from buildsys.execution.placement import Placer
    from buildsys.execution.remote_environments import RemoteEnvironments
    from buildsys.history.recorder import Checkout, Recorder
    from buildsys.manifest.project import Project
    from buildsys.plan.action import Action
    from buildsys.store.signatures import TrustPolicy
    from buildsys.workers.client.pool import WorkerPool


class OpenProject(TargetNames):
    """The targets of a project, their places and their executor."""

    jobs: ClassVar[int] = 1  # ``doit -n``, known before the project is loaded

    def __init__(self, project: Project) -> None:
        # without models, project.yaml may be the reason: it is not checked
        self.executors = project.executors() if project.models else {}
        self.placer = _placer(self.executors)
        self._obstacles: dict[str, Sequence[str]] = {}  # of targets that have no place
        versions = builder_versions(project.root, project.state)
        super().__init__(project, ProjectPlan(project.models, versions, self._executor_of))
        # (target, event) from any thread: progress, the stale reason, or waiting for a process
        self.on_event: Callable[[str, Mapping[str, Any]], None] = lambda *_: None
        self.on_warning: Callable[[str], None] | None = None  # None: print it on stderr
        self.dispatcher: Dispatcher | None = None  # once a target runs on an executor

    def close(self) -> None:
        """Stop the workers and the executor."""
        if "_pool" in vars(self):
            self._pool.close()
        if "executor" in vars(self):
            self.executor.close()

    @cached_property
    def _pool(self) -> WorkerPool:
        from buildsys.workers.client.pool import WorkerPool

        atexit.register(self.close)  # another reporter (`doit -r json`) does not close it
        return WorkerPool(self.project.state)

    @cached_property
    def executor(self) -> Executor:
        """The executor of this project; it starts nothing before a stage runs."""
        from buildsys.execution.build_cache import store_folder
        from buildsys.execution.executor import Executor
        from buildsys.store.object_store import Store
        from buildsys.store.state_db import warn_on_stderr

        def notify(warning: str) -> None:
            (self.on_warning or warn_on_stderr)(warning)

        project, cores, remote = self.project, len(os.sched_getaffinity(0)), None
        settings = project.shared_cache()
        signing, signer = project.signing(), None
        if signing.key is not None:
            from buildsys.execution.provenance import ProvenanceSigner
            from buildsys.store.signatures import SigningKey

            signer = ProvenanceSigner(SigningKey(signing.key), notify, lambda: self.checkout)
        if settings is not None:
            from buildsys.store.shared_cache import SharedCache

            known_hosts = project.state / "known_hosts"
            remote = SharedCache(notify=notify, known_hosts=known_hosts, **settings)
        return Executor(
            project.root,
            project.build,
            project.state,
            self.actions,
            pool=self._pool,
            store=Store(store_folder(project.state)),
            remote=remote,
            signer=signer,
            trust=self.trust,
            timing_caches=project.timing_caches(),
            # more threads than cores spin against each other and make no progress
            threads=0 if self.jobs <= 1 else max(1, cores // self.jobs),
            # with executors there are more threads than targets at a time here
            jobs=self.jobs if self.jobs > 1 or self.placer else 0,
            on_event=lambda target, event: self.on_event(target, event),
            notify=notify,
            make_recorder=self._make_recorder,
            before_stage=signer.prepare if signer else lambda: None,
            keys_at=self._keys_at_revision,
            executors=self.executors,
            dispatch=self._dispatcher,
        )

    @property
    def _executor_of(self) -> Callable[[Action], str] | None:
        return self._place if self.placer else None

    def _place(self, action: Action) -> str:
        assert self.placer is not None
        place = self.placer.place(action)
        if place.obstacles:
            self._obstacles[action.target] = place.obstacles
        return place.executor

    @cached_property
    def remote_jobs(self) -> dict[str, int]:
        """The number of targets at a time, by executor."""
        found = self.executors.items()
        return {name: each["jobs"] for name, each in found if each["kind"] != LOCAL}

    def check_places(self, targets: Iterable[str]) -> None:
        """Check the targets' places.

        Raises: UsageError: no place has what it needs.
        """
        if self.placer is None:
            return
        for target in targets:
            self.actions.targets(model_of(target))
            if obstacles := self._obstacles.get(target):
                problem = f"nothing can run {target}: {'; '.join(obstacles)}"
                hint = "correct its `needs`, or add an executor to configs/project.yaml"
                raise UsageError(problem, hint)

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

        with contextlib.suppress(UsageError, OSError):  # without git, or outside of a repository
            return read_checkout(self.project.root, (self.project.build, self.project.state))
        return None

    def _dispatcher(self, environments: RemoteEnvironments, baselines: Baselines) -> Dispatcher:
        """Return the dispatcher for the executors. Raises: UsageError: they share no cache."""
        from buildsys.execution.build_cache import store_folder
        from buildsys.execution.dispatch import Dispatcher
        from buildsys.store.object_store import Store
        from buildsys.store.shared_cache import READ_WRITE, SharedCache
        from buildsys.store.signatures import SigningKey
        from buildsys.store.state_db import warn_on_stderr

        project, key = self.project, self.project.signing().key
        settings = project.shared_cache()
        if settings is None:
            hint = "set cache.remote in configs/project.yaml"
            raise StageError("executors need a shared cache, which their machines reach", hint)
        settings |= {"mode": READ_WRITE, "timeout_s": max(600.0, settings.get("timeout_s", 0.0))}
        known_hosts = project.state / "known_hosts"
        shared = SharedCache(
            notify=warn_on_stderr, known_hosts=known_hosts, required=True, **settings
        )
        self.dispatcher = Dispatcher(
            self.executors,
            project.root,
            project.build,
            shared=shared,
            url=settings["url"],
            store=Store(store_folder(project.state)),
            environments=environments,
            baselines=baselines,
            signing_key=SigningKey(key) if key else None,
            trust=self.trust,
            checkout=lambda: self.checkout,
            open_actions=self._open_actions,
        )
        return self.dispatcher

    def job_of(self, target: str) -> Hashable:
        """Return the key of an action's shared job, None without one."""
        action = self.actions[target]
        if not action.executor or not self.executors[action.executor]["linger"]:
            return None
        from buildsys.execution.model_jobs import job_key

        key = job_key(action)
        return key and (action.executor, *key)

    def _open_actions(self, model: str) -> list[Action]:
        return [action for name, action in self.actions.of(model).items() if self.may_run(name)]

    def may_run(self, target: str) -> bool:
        """Return True for a target still to be built by this run."""
        del target
        return True

    def _make_recorder(self) -> Recorder:
        from buildsys.history.database import History, history_file
        from buildsys.history.recorder import Checkout, Recorder

        history = History(history_file(self.project.state))
        return Recorder(
            history,
            lambda: self.checkout or Checkout(),
            lambda model: self.project.models[model].text,
        )

    def _keys_at_revision(self, revision: str, target: str) -> frozenset[str]:
        """Return the keys of builds with a target's inputs at a revision."""
        from buildsys.cli.git_revision import builds_of, recorded_builds
        from buildsys.execution.build_cache import store_folder
        from buildsys.store.object_store import Store

        records = recorded_builds(self.executor.ledger, Store(store_folder(self.project.state)))
        try:
            found = builds_of(self.project, revision, target, records)
        except (BuildsysError, OSError):  # its manifests are wrong, or there is no space
            return frozenset()
        return frozenset(record.key for record in found or ())


def _placer(executors: Mapping[str, Mapping[str, Any]]) -> Placer | None:
    """Return what places targets on executors, None without any."""
    if not executors:
        return None
    from buildsys.execution.machine_needs import lacking
    from buildsys.execution.placement import Placer

    return Placer(executors, lacking)
