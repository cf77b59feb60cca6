"""The user's plugins for TensorRT: those that an engine needs, before its graph is parsed or it is loaded."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from buildsys.backends.interface import Figures, OperatorUse
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import log_of
from buildsys.backends.tensorrt.plugins.callback_guard import Guard
from buildsys.backends.tensorrt.plugins.python import register_file
from buildsys.backends.tensorrt.plugins.shared import load_library
from buildsys.system.files import sha256_of

_LOADED: dict[
    tuple[Library, OperatorUse], Figures
] = {}  # of this process: the registry takes each name once


def load_plugins(library: Library, operators: Sequence[OperatorUse]) -> list[Figures]:
    """Register TensorRT's own plugins and those of operators; return what an engine's result tells of them.

    A failing callback ends the stage, see ``plugin_guard``.
    Raises: StageError: a file has no such plugin, cannot be loaded, or is not for this machine.
    """
    _register_own(library)
    plugins = [use for use in operators if use.kind == "plugin"]
    fresh = [use for use in plugins if (library, use) not in _LOADED]
    if fresh:
        version_adapter.check_plugin_machinery(library)
        faulthandler.enable(
            sys.__stderr__ or sys.stderr
        )  # a plugin that crashes tells its line in the log
    for path in dict.fromkeys(use.path for use in fresh):
        uses = [use for use in fresh if use.path == path]
        for use, creator in zip(uses, _load(library, path, uses), strict=True):
            _LOADED[library, use] = _facts(use, creator)
    return [_LOADED[library, use] for use in plugins]


@cache
def _register_own(library: Library) -> None:
    version_adapter.register_own_plugins(library, log_of(library).logger)


def _load(library: Library, path: Path, uses: Sequence[OperatorUse]) -> list[Any]:
    operators = [use.op for use in uses]
    project, shown = uses[0].project, _shown(uses[0])
    if path.suffix == ".py":
        version_adapter.check_python_plugins(library, shown)
        return register_file(shown, operators, Guard(library, project, uses[0].fail))
    return load_library(path, shown, operators, library)


def _facts(use: OperatorUse, creator: Any) -> Figures:
    return {
        "operator": use.op,
        "name": creator.name,
        "version": creator.plugin_version,
        "namespace": creator.plugin_namespace,
        "file": _shown(use),
        "file_sha256": sha256_of(use.path),
    }


def _shown(use: OperatorUse) -> str:
    return (
        str(use.path.relative_to(use.project))
        if use.path.is_relative_to(use.project)
        else use.path.name
    )
