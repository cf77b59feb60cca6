"""Targets expected to be unavailable on this machine, without running anything.

Stages decide when they load their library. A query starts no process, so it looks at installed
versions and the GPU in the same way as the keys.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from buildsys.errors import with_hint
from buildsys.execution.action_key import ActionKey
from buildsys.execution.key_parts import lacking, obstacle
from buildsys.plan.action import Action, ToolchainRef
from buildsys.stages.table import COMMAND, ENGINE
from buildsys.system.backend_registry import describe_backend
from buildsys.system.devices import NONE, gpu_facts
from buildsys.system.toolchains import Toolchain, check_interpreter, locate_toolchain
from buildsys.system.versions import ABSENT, tool_versions


def expected_obstacle(action: Action, project: Path) -> str:
    """Find a known obstacle to ``action`` on this machine and its remedy, or ""."""
    if lacks := lacking(action.needs):
        return with_hint(*obstacle(lacks))
    if action.stage == COMMAND:
        from buildsys.system.programs import missing_requirement  # not needed by most projects

        located, options = _located(action.toolchain, project), action.options
        missing_program = missing_requirement(located, options["versions"], options["device"])
        return "; ".join(missing_program or ())
    engine = action.options.get("engine")
    if engine is None:
        return ""
    backend, gpu = engine["backend"], gpu_facts()
    has_gpu = gpu["gpu.name"] != NONE
    if missing := _missing_library(backend, action.toolchain, project, has_gpu=has_gpu):
        return missing
    description = describe_backend(backend)
    for names, remedy in description.one_of(engine):
        located = _located(action.toolchain, project)
        if all(version == ABSENT for version in tool_versions(names, located).values()):
            where = f" in the toolchain {located.name}" if located else ""
            return f"{' or '.join(names)} is not installed{where}; {remedy}"
    is_build = action.stage == ENGINE
    if not description.runs_on_gpu(engine) or (is_build and description.builds_without_gpu):
        return ""
    if not has_gpu:
        return "there is no NVIDIA GPU here; run it on a machine with one"
    here, built_for = gpu["gpu.compute_capability"], engine.get("compute_capabilities", ())
    if not built_for or here in built_for or "current" in built_for or " + " in here:
        return ""
    supported = ", ".join(built_for)
    return (
        f"it is built for GPUs of compute capability {supported}, and the {gpu['gpu.name']} here"
        f" has {here}; use backend: tensorrt for this GPU"
    )


def needs_no_device(action: Action, key: ActionKey, project: Path) -> bool:
    """Check that a stage ends as unavailable before it uses a device.

    There is no engine to run, or no module of the library that builds it. Other facts, such as the
    GPU's, are not enough: if they are wrong, a stage without a lock disturbs another benchmark.
    """
    if lacking(action.needs):
        return True
    engine = action.inputs.get("engine")
    if engine is not None:
        return key.files[f"input:{engine.path}"] is None
    if action.stage != ENGINE or not (backend := action.options["engine"].get("backend")):
        return False
    if not _missing_library(backend, action.toolchain, project, has_gpu=False):
        return False
    description = describe_backend(backend)
    package = description.module.partition(".")[0]
    if description.problem:
        return True
    if action.toolchain is None:
        return find_spec(package) is None
    interpreter = check_interpreter(locate_toolchain(*action.toolchain, project, os.environ))
    return interpreter.interpreter is None or not interpreter.interpreter.finds(package)


def _located(toolchain: ToolchainRef | None, project: Path) -> Toolchain | None:
    return locate_toolchain(*toolchain, project, os.environ) if toolchain else None


@cache
def _missing_library(
    backend: str, toolchain: ToolchainRef | None, project: Path, *, has_gpu: bool
) -> str:
    located = _located(toolchain, project)
    if located is not None and not located.python.exists():
        problem = f"there is no {located.python}, the interpreter of the toolchain {located.name}"
        return f"{problem}; create it, or correct toolchains.{located.name}.python"
    description = describe_backend(backend)
    if description.problem:
        return f"{description.problem}; {description.install}"
    library = description.distribution
    if tool_versions((library,), located)[library] != ABSENT:
        return ""
    where = f" in the toolchain {located.name}" if located else ""
    remedy = f"{located.pip} {description.packages}" if located else description.install
    if description.needs_gpu_library and not has_gpu:
        remedy = f"on a machine with an NVIDIA GPU: {remedy}"
    return f"{library} is not installed{where}; {remedy}"
