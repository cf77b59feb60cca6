"""A project with its executor, made on first use."""

from __future__ import annotations

import atexit
import contextlib
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from buildsys.cli.target_names import TargetNames
from buildsys.errors import UsageError
from buildsys.execution.key_parts import builder_versions
from buildsys.project.plan import ProjectPlan

if TYPE_CHECKING:
    from buildsys.execution.executor import Executor
    from buildsys.history.recorder import Checkout, Recorder
    from buildsys.project.load import Project
    from buildsys.store.signatures import TrustPolicy
    from buildsys.workers.pool import WorkerPool


class OpenProject(TargetNames):
    """The targets of a project and their executor."""

    def __init__(self, project: Project) -> None:
        versions = builder_versions(project.root, project.state)
        super().__init__(project, ProjectPlan(project.models, versions))
        # (target, event) from any thread: progress, the stale reason, or waiting for a process
        self.on_event: Callable[[str, Mapping[str, Any]], None] = lambda *_: None
        self.jobs = 1  # targets at a time
        self.on_warning: Callable[[str], None] | None = None  # None: print it on stderr

    def close(self) -> None:
        """Stop the workers and the executor."""
        if "_pool" in vars(self):
            self._pool.close()
        if "executor" in vars(self):
            self.executor.close()

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
        from buildsys.store.state_db import warn_on_stderr

        def notify(warning: str) -> None:
            (self.on_warning or warn_on_stderr)(warning)

        project, remote = self.project, None
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
            Folders(project.root, project.build, project.state, project.timing_caches()),
            self.actions,
            pool=self._pool,
            store=Store(store_folder(project.state)),
            remote=remote,
            signer=signer,
            trust=self.trust,
            jobs=self.jobs if self.jobs > 1 else 0,
            on_event=lambda target, event: self.on_event(target, event),
            notify=notify,
            make_recorder=self._make_recorder,
        )

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
        from buildsys.history.recorder import CHECKOUT_FILE, Checkout

        packed = self.project.state / CHECKOUT_FILE
        if packed.is_file():
            return Checkout(**json.loads(packed.read_text(encoding="utf-8")))
        with contextlib.suppress(UsageError, OSError):  # without git, or outside of a repository
            return read_checkout(self.project.root, (self.project.build, self.project.state))
        return None

    def _make_recorder(self) -> Recorder:
        from buildsys.history.database import History, history_file
        from buildsys.history.recorder import Checkout, Recorder

        history = History(history_file(self.project.state))
        return Recorder(
            history,
            lambda: self.checkout or Checkout(),
            lambda model: self.project.models[model].text,
        )
