"""The job of an action's stage, and its exclusive devices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from buildsys.plan.action import Action, FileRef
from buildsys.store.locks import CPU
from buildsys.system.devices import gpu_uuids
from buildsys.system.interpreters.toolchain import locate_toolchain
from buildsys.workers.job import Job


def stage_job(
    action: Action,
    project: Path,
    build: Path,
    outputs: Mapping[str, Path],
    *,
    threads: int = 0,
    timing_caches: Path | None = None,
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
    )


def devices_alone(action: Action) -> tuple[str, ...]:
    """Return the devices used exclusively by ``action``."""
    variables = action.toolchain.env if action.toolchain else ()
    gpus = tuple(gpu_uuids(variables)) if action.alone_on_gpu else ()
    return (*gpus, CPU) if action.exclusive else gpus
