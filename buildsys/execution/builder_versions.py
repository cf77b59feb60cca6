"""Which TensorRT builds the engines of a project: what they are built from is planned by that."""

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
    """Return what tells which TensorRT a toolchain of the project at ``root`` has, or our own interpreter."""

    @cache
    def version_of(toolchain: ToolchainRef | None) -> str:
        if toolchain is None:
            return tool_versions(("tensorrt",))["tensorrt"]
        from buildsys.store.state_db import ReadOnlyStateDb
        from buildsys.store.text_cache import StateTextCache

        view = ReadOnlyStateDb(
            state / "state.db", lambda _: None
        )  # a run says what is wrong with it
        try:
            return tool_versions(
                ("tensorrt",), locate_toolchain(*toolchain, root, os.environ), StateTextCache(view)
            )["tensorrt"]
        finally:
            view.close()

    return version_of
