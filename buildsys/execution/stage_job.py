"""The job of an action's stage, and its exclusive devices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from buildsys.plan.action import Action, FileRef
from buildsys.store.locks import CPU, Locks, OnWait
from buildsys.system.devices import VISIBLE_DEVICES, equal_gpus, gpu_uuids
from buildsys.system.interpreters.toolchain import locate_toolchain
from buildsys.workers.job import Job
from buildsys.workers.server_kinds import DEFAULT_INTERPRETER_STAGES


def stage_job(
    action: Action,
    project: Path,
    build: Path,
    outputs: Mapping[str, Path],
    *,
    threads: int = 0,
    timing_caches: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Job:
    """Return the job of ``action`` with inputs from ``build``.

    ``threads`` and ``timing_caches`` are ignored for stages that must not or cannot use them.
    """

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
        advisory=existing(action.advisory),
        timing_caches=timing_caches if action.stage == "engine" else None,
        toolchain=toolchain and locate_toolchain(*toolchain, project, os.environ),
        threads=0 if action.measures else threads,
        environment=environment,
    )


@contextmanager
def hold_devices(
    locks: Locks, action: Action, target: str, on_wait: OnWait
) -> Iterator[dict[str, str]]:
    """Hold the exclusive devices of ``action``; yield variables that select its GPU.

    Of equal GPUs the first free one is selected. A stage in the interpreter of a toolchain uses no
    other GPU than the toolchain's.
    """
    variables = action.toolchain.env if action.toolchain else ()
    gpus: tuple[str, ...] = ()
    selected: dict[str, str] = {}
    with ExitStack() as stack:
        if action.alone_on_gpu and (choice := equal_gpus(variables)):
            gpu = stack.enter_context(locks.one_device(choice, target, on_wait))
            selected = {VISIBLE_DEVICES: gpu}
        elif action.alone_on_gpu:
            gpus = gpu_uuids(variables, here=action.stage in DEFAULT_INTERPRETER_STAGES)
        cpu = (CPU,) if action.exclusive else ()
        stack.enter_context(locks.devices((*gpus, *cpu), target, on_wait))
        yield selected
