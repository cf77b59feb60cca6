"""The user's plugins for TensorRT-RTX: those that an engine needs, before its graph is parsed or it is loaded."""

from __future__ import annotations

import ctypes
import faulthandler
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorrt_rtx as trt

from buildsys.backends.base import Figures, PluginUse
from buildsys.backends.plugin_files import register_file
from buildsys.backends.plugin_guard import Fail, Guard
from buildsys.backends.plugin_libraries import load_library
from buildsys.digest import sha256_of
from buildsys.errors import StageError

_PARSERS_LIBRARY = "libtensorrt_rtx.so"


def load_plugins(plugins: Sequence[PluginUse], project: Path, fail: Fail) -> list[Figures]:
    """Register the plugins of operators; return what an engine's result tells of them.

    A failing callback ends the process by ``fail``, see ``plugin_guard``.
    Raises: StageError: a file has no such plugin, cannot be loaded, or is not for this machine.
    """
    if not plugins:
        return []
    _check_parsers_library()
    faulthandler.enable(sys.__stderr__ or sys.stderr)  # where a plugin was that crashes, for the log
    guard = Guard(trt, project, fail)
    facts: list[Figures] = []
    for path in dict.fromkeys(plugin.path for plugin in plugins):
        operators = [plugin.op for plugin in plugins if plugin.path == path]
        if path.endswith(".py"):
            creators = register_file(path, operators, guard)
        else:
            creators = load_library(path, operators, trt, project)
        pairs = zip(operators, creators, strict=True)
        facts += [_facts(operator, creator, path, project) for operator, creator in pairs]
    return facts


def _facts(operator: str, creator: Any, path: str, project: Path) -> Figures:
    return {
        "operator": operator,
        "name": creator.name,
        "version": creator.plugin_version,
        "namespace": creator.plugin_namespace,
        "file": path,
        "file_sha256": sha256_of(project / path),
    }


def _check_parsers_library() -> None:
    """Find out in time what the parser aborts the process for: it opens the library by a name that no wheel has."""
    try:
        ctypes.CDLL(_PARSERS_LIBRARY)
    except OSError as error:
        problem = f"TensorRT-RTX looks for {_PARSERS_LIBRARY} when a graph has plugins, and there is none"
        hint = "put a folder with a link of this name to its library on LD_LIBRARY_PATH, as the workers have it"
        raise StageError(problem, hint) from error
