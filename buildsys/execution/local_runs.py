"""Stages on this machine: if they can run here, and their devices and worker processes.

Stages decide when they load their library. A query starts no process, so it looks at installed
versions and the GPU in the same way as the keys.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from buildsys.errors import BuildsysError, CheckFailed, StageError, Unavailable, with_hint
from buildsys.execution.action_key import ActionKey
from buildsys.execution.baselines import GateBaselines
from buildsys.execution.key_parts import lacking, obstacle
from buildsys.plan.action import RESULT, Action, FileRef
from buildsys.stages.table import COMMAND, ENGINE, stage_info
from buildsys.store.file_digests import hash_file
from buildsys.store.ledger import FAILED, UNAVAILABLE, ActionRecord, Ledger
from buildsys.store.locks import CPU, Locks, OnWait
from buildsys.store.object_store import Store
from buildsys.store.publish import disk_errors, refuse_links
from buildsys.system.backend_registry import describe_backend
from buildsys.system.cpu import usable_threads
from buildsys.system.devices import VISIBLE_DEVICES, equal_gpus, gpu_uuids
from buildsys.system.toolchains import locate_toolchain
from buildsys.workers.job import Job, StageResult

if TYPE_CHECKING:
    from buildsys.workers.pool import JobReply, WorkerPool

Event = dict[str, Any]
_EARLIER_BUILDS = 3  # to refit; older ones rarely have the same graph


class Folders(NamedTuple):
    """The folders of a project."""

    project: Path
    build: Path
    state: Path
    timing_caches: Path | None = None
    code: tuple[str, ...] = ()  # to import user code from


@dataclass(frozen=True)
class LocalRuns:
    """Runs stages on this machine."""

    folders: Folders
    pool: WorkerPool
    store: Store
    locks: Locks
    ledger: Ledger
    baselines: GateBaselines
    jobs: int  # stages at a time, 0: no limit
    # for the stages at a time; those that wait for a GPU or for the machine do not count
    slots: threading.Semaphore | nullcontext[None]

    @cached_property
    def threads(self) -> int:
        """The threads of a worker: more than cores spin and make no progress."""
        return max(1, usable_threads(os.environ) // max(1, self.jobs))

    def run(
        self,
        action: Action,
        key: ActionKey,
        tree: Path,
        log: Path,
        *,
        on_wait: OnWait,
        on_event: Callable[[Event], None],
        refits: bool,
    ) -> JobReply:
        """Run the stage of an action with outputs in ``tree``.

        ``refits``: earlier builds may be its start.
        Raises: StageError: with the seconds of the stage itself.
        """
        outputs = {role: tree / ref.path for role, ref in action.outputs.items()}
        refuse_links(self.folders.build, (ref.path for ref in action.outputs.values()))
        for path in (log, *outputs.values()):
            with disk_errors(f"create {path.parent}"):
                path.parent.mkdir(parents=True, exist_ok=True)
        # without its engine or what it needs, a stage ends as unavailable before it uses a device
        engine = action.inputs.get("engine")
        no_engine = engine is not None and key.files[f"input:{engine.path}"] is None
        devices = not no_engine and not lacking(action.needs)
        holding = hold_devices(self.locks, action, action.target, on_wait, needed=devices)
        with holding as held, self.slots, ExitStack() as stack:
            records = self.ledger.records(action.target) if refits else ()
            project, build, _, caches, code = self.folders
            job = replace(
                stage_job(action, project, build, outputs, timing_caches=caches, code=code),
                threads=0 if action.measures else self.threads,
                **held,
                parts=self._parts(action, key),
                earlier=earlier_builds(action, key.parts, records, self.store),
            )
            if action.baseline is not None:
                folder = Path(
                    stack.enter_context(tempfile.TemporaryDirectory(dir=self.folders.state))
                )
                job = self.add_baseline(job, action, key, folder)
            begun = time.perf_counter()
            run = partial(self.pool.run, log=log, timeout_s=action.timeout_s, on_event=on_event)
            try:
                reply = run(job)
                if job.parts:
                    shutil.rmtree(job.parts, ignore_errors=True)
                return reply
            except BuildsysError as error:
                error.seconds = time.perf_counter() - begun
                if not isinstance(error, (CheckFailed, Unavailable)):
                    raise
                from buildsys.workers.pool import JobReply

                if not outputs[RESULT].exists():  # no worker was started
                    from buildsys.workers.result_file import write_result

                    result = StageResult("unavailable", error.problem, error.hint)
                    write_result(job, result, started=datetime.now(timezone.utc), versions={})

                status = FAILED if isinstance(error, CheckFailed) else UNAVAILABLE
                return JobReply(
                    status, error.problem, error.hint, {}, error.seconds, changes=error.changes
                )

    def _parts(self, action: Action, key: ActionKey) -> Path | None:
        """Choose the folder for parts of a result; remove those of other keys."""
        if not stage_info(action.stage).is_resumable:
            return None
        name = f"{action.target.replace(':', '@')}-"
        folder = self.folders.state / "parts"
        parts = folder / f"{name}{key.digest[:16]}"
        for other in folder.glob(f"{name}*"):
            if other != parts and len(other.name) == len(parts.name):
                shutil.rmtree(other, ignore_errors=True)
        return parts

    def add_baseline(self, job: Job, action: Action, key: ActionKey, folder: Path) -> Job:
        """Add a gate's baseline to its job, copied into ``folder``."""
        baseline, files = self.baselines.fetch(action, key.parts, self.store, folder)
        earlier = {f"baseline.{role}": path for role, path in files.items()}
        return replace(job, baseline=baseline, inputs={**job.inputs, **earlier})


def stage_job(
    action: Action,
    project: Path,
    build: Path,
    outputs: Mapping[str, Path],
    *,
    timing_caches: Path | None = None,
    code: tuple[str, ...] = (),
) -> Job:
    """Make the job of ``action`` with inputs from ``build``."""

    def existing(files: Mapping[str, FileRef]) -> dict[str, Path]:
        paths = {role: build / ref.path for role, ref in files.items()}
        return {role: path for role, path in paths.items() if path.exists()}

    toolchain = action.toolchain
    return Job(
        target=action.target,
        stage=action.stage,
        model=action.model,
        variant=action.variant,
        options=action.options,
        inputs=existing(action.inputs),
        outputs=outputs,
        project=project,
        code_roots=code,
        advisory=existing(action.advisory),
        timing_caches=timing_caches if action.stage == ENGINE else None,
        toolchain=toolchain and locate_toolchain(*toolchain, project, os.environ),
        obstacle=obstacle(lacks) if (lacks := lacking(action.needs)) else None,
        in_own_interpreter=stage_info(action.stage).in_own_interpreter,
        server=action.server,
        preload=action.preload,
    )


def earlier_builds(
    action: Action, parts: Mapping[str, str], records: Iterable[ActionRecord], store: Store
) -> list[dict[str, str]]:
    """List the stored engines and results of builds from other graphs, newest first.

    Everything else in their keys equals ``parts``. The key does not depend on them: an engine with
    new weights is verified like a new one.
    """
    roles = ("model", "weights")  # a graph, or a network defined by hand
    graph = {f"input:{ref.path}" for role, ref in action.inputs.items() if role.startswith(roles)}
    graph |= {f"weights:{file}" for file in action.weights}
    paths = {role: ref.path for role, ref in action.outputs.items() if role in ("engine", RESULT)}
    builds: list[dict[str, str]] = []
    for record in records:
        labels = parts.keys() | record.parts.keys()
        if not {label for label in labels if parts.get(label) != record.parts.get(label)} <= graph:
            continue
        files = {role: record.files[path] for role, path in paths.items() if path in record.files}
        places = {role: str(store.object_path(file.digest)) for role, file in files.items()}
        with suppress(StageError):  # no longer stored
            are_intact = [hash_file(places[r]).digest == file.digest for r, file in files.items()]
            if all(are_intact) and files.keys() == paths.keys():
                builds.append(places)
        if len(builds) == _EARLIER_BUILDS:
            break
    return builds


def report_wait(holder: str) -> None:
    """Tell the user what a command waits for."""
    sys.stderr.write(f"waiting for {holder or 'other targets'}\n")


@contextmanager
def hold_devices(
    locks: Locks, action: Action, target: str, on_wait: OnWait = report_wait, *, needed: bool = True
) -> Iterator[dict[str, Any]]:
    """Hold the project and the exclusive devices; yield them as fields of a job.

    Of equal GPUs the first free one is selected. A stage in the interpreter of a toolchain uses no
    other GPU than the toolchain's. Without ``needed`` devices, the project is shared.
    """
    variables = action.toolchain.env if action.toolchain else ()
    exclusive = needed and action.exclusive
    gpus: tuple[str, ...] = ()
    selected: tuple[str, ...] = ()
    with ExitStack() as stack:
        if needed and action.alone_on_gpu:
            if choice := equal_gpus(variables):
                selected = (stack.enter_context(locks.one_device(choice, target, on_wait)),)
            else:
                gpus = gpu_uuids(variables, here=stage_info(action.stage).in_own_interpreter)
        cpu = (CPU,) if exclusive else ()
        # devices first: waiting for one must not keep others from an exclusive project
        stack.enter_context(locks.devices((*gpus, *cpu), target, on_wait))
        stack.enter_context(locks.project(target, exclusive=exclusive, on_wait=on_wait))
        variables_of_gpu = {VISIBLE_DEVICES: selected[0]} if selected else {}
        yield {"exclusive": (*selected, *gpus, *cpu), "environment": variables_of_gpu}


def expected_obstacle(action: Action, project: Path) -> str:
    """Find a known obstacle to ``action`` on this machine and its remedy, or ""."""
    if lacks := lacking(action.needs):
        return with_hint(*obstacle(lacks))
    located = locate_toolchain(*action.toolchain, project, os.environ) if action.toolchain else None
    engine, remedy, on_gpu = action.options.get("engine"), "", False
    if action.stage == COMMAND:
        names, on_gpu = action.options["versions"], action.options["device"] == "cuda"
    elif engine is not None:
        description = describe_backend(engine["backend"])
        if description.problem:
            return f"{description.problem}; {description.install}"
        names = (description.distribution,)
        remedy = f"{located.pip} {description.packages}" if located else description.install
        builds_anywhere = action.stage == ENGINE and description.builds_without_gpu
        on_gpu = description.runs_on_gpu(engine) and not builds_anywhere
    else:
        return ""
    from buildsys.system.programs import missing_requirement  # not needed by a run

    return "; ".join(missing_requirement(located, names, on_gpu=on_gpu, remedy=remedy) or ())
