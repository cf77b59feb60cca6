"""TensorRT versions of a project's interpreters, an input of planning."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.system.interpreters.toolchain import locate_toolchain
from buildsys.system.versions import tool_versions

if TYPE_CHECKING:
    from buildsys.plan.action import ToolchainRef
    from buildsys.plan.engine_typing import VersionOf


def builder_versions(root: Path, state: Path) -> VersionOf:
    """Return a lookup of TensorRT versions by toolchain."""

    @cache
    def version_of(toolchain: ToolchainRef | None) -> str:
        if toolchain is None:
            return tool_versions(("tensorrt",))["tensorrt"]
        from buildsys.store.state_db import ReadOnlyStateDb

        view = ReadOnlyStateDb(state / "state.db", lambda _: None)  # a run reports problems with it
        try:
            located = locate_toolchain(*toolchain, root, os.environ)
            return tool_versions(("tensorrt",), located, view)["tensorrt"]
        finally:
            view.close()

    return version_of
