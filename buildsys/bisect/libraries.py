"""Versions of an engine's libraries as a toolchain of its manifest, which can be separated."""

import os
from collections.abc import Sequence
from pathlib import Path

from buildsys.bisect.builds import State, StateBuild
from buildsys.bisect.differences import Parts
from buildsys.errors import BuildsysError
from buildsys.execution.stale_reasons import StaleReason
from buildsys.report.formatting import fold
from buildsys.stages.table import ENGINE
from buildsys.store.state_db import warn_on_stderr
from buildsys.system.toolchains import locate_toolchain
from buildsys.upgrade.shadow import make_shadow
from buildsys.workers.registry import IDLE_VARIABLE

_TOOL = "tool"


def with_libraries(
    build: StateBuild, recorded: Parts, differing: Sequence[StaleReason], folder: Path
) -> tuple[State, list[StaleReason]]:
    """Give an engine the differing libraries of its recorded build, if pip can install them.

    Returns the changed state, and the differences between libraries that it contains.
    """
    state, nothing = build.state, list[StaleReason]()
    action = next(a for a in build.actions.values() if a.stage == ENGINE)
    now, then = (parts.get(action.target, {}) for parts in (build.parts, recorded))
    names = {*action.tools} - {"python"}
    separated = [r for r in differing if r.kind == _TOOL and r.subject in names]
    versions = {r.subject: then.get(f"{_TOOL}:{r.subject}", "") for r in separated}
    packages = [f"{n}=={v}" for n, v in versions.items() if v not in ("", now.get(f"{_TOOL}:{n}"))]
    if not packages:
        return state, nothing
    project, manifest, name = state.project, state.model.data, ", ".join(packages)
    toolchain = action.toolchain and locate_toolchain(*action.toolchain, project.root, os.environ)
    warn_on_stderr(f"{name} is installed into a temporary environment")
    try:
        shadow = make_shadow(folder, toolchain, packages, ())
    except BuildsysError as error:
        warn_on_stderr(f"{name} cannot be had: {fold(str(error))[0]}")
        return state, nothing
    os.environ[IDLE_VARIABLE] = "0"  # no server outlives the shadow
    place = {"python": str(shadow.python), "env": toolchain.env if toolchain else {}}
    changed = {
        "toolchains": {**manifest.get("toolchains", {}), name: place},
        "engines": [
            {**engine, "toolchain": name} if engine["name"] == action.variant else engine
            for engine in manifest["engines"]
        ],
    }
    return state.with_manifest({**manifest, **changed}), separated
