"""Registration of an engine's plugins, before parsing or loading."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from buildsys.backends.interface import Figures, OperatorUse
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import log_of
from buildsys.backends.tensorrt.plugins.callback_guard import Guard
from buildsys.backends.tensorrt.plugins.python import register_file
from buildsys.backends.tensorrt.plugins.shared import load_library
from buildsys.system.files import sha256_of

# in this process: the registry accepts each name once
_LOADED: dict[tuple[Library, OperatorUse], Figures] = {}


def load_plugins(library: Library, operators: Sequence[OperatorUse]) -> list[Figures]:
    """Register TensorRT's plugins and those of operators; return their facts.

    A failing callback ends the stage, see ``callback_guard``.
    Raises: StageError: a file has no such plugin, cannot be loaded, or is not for this machine.
    """
    _register_bundled(library)
    plugins = [use for use in operators if use.kind == "plugin"]
    new = [use for use in plugins if (library, use) not in _LOADED]
    if new:
        version_adapter.check_plugin_library(library)
        # prints the Python line of a plugin that crashes
        faulthandler.enable(sys.__stderr__ or sys.stderr)
    for path in dict.fromkeys(use.path for use in new):
        uses = [use for use in new if use.path == path]
        for use, creator in zip(uses, _register(library, uses), strict=True):
            _LOADED[library, use] = {
                "operator": use.op,
                "name": creator.name,
                "version": creator.plugin_version,
                "namespace": creator.plugin_namespace,
                "file": _shown_path(use),
                "file_sha256": sha256_of(use.path),
            }
    return [_LOADED[library, use] for use in plugins]


@cache
def _register_bundled(library: Library) -> None:
    version_adapter.register_bundled_plugins(library, log_of(library).logger)


def _register(library: Library, uses: Sequence[OperatorUse]) -> list[Any]:
    """Register the plugins of one file; return their creators."""
    operators = [use.op for use in uses]
    first, shown = uses[0], _shown_path(uses[0])
    if first.path.suffix == ".py":
        version_adapter.check_python_plugins(library, shown)
        return register_file(shown, operators, Guard(library, first.project, first.fail))
    return load_library(first.path, shown, operators, library)


def _shown_path(use: OperatorUse) -> str:
    is_own = use.path.is_relative_to(use.project)
    return str(use.path.relative_to(use.project)) if is_own else use.path.name
