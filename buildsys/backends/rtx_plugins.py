"""The user's plugins for TensorRT-RTX: those that an engine needs, before its graph is parsed or it is loaded."""

from __future__ import annotations

import ctypes
import faulthandler
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorrt_rtx as trt

from buildsys.backends.base import Figures, OperatorUse
from buildsys.backends.plugin_files import register_file
from buildsys.backends.plugin_guard import Guard
from buildsys.backends.plugin_libraries import load_library
from buildsys.digest import sha256_of
from buildsys.errors import StageError

_PARSERS_LIBRARY = "libtensorrt_rtx.so"
_LOADED: dict[OperatorUse, Figures] = {}  # of this process: the registry takes each name once


def load_plugins(operators: Sequence[OperatorUse]) -> list[Figures]:
    """Register the plugins of operators; return what an engine's result tells of them.

    A failing callback ends the stage, see ``plugin_guard``.
    Raises: StageError: a file has no such plugin, cannot be loaded, or is not for this machine.
    """
    plugins = [use for use in operators if use.kind == "plugin"]
    fresh = [use for use in plugins if use not in _LOADED]
    if fresh:
        _check_parsers_library()
        faulthandler.enable(sys.__stderr__ or sys.stderr)  # a plugin that crashes tells its line in the log
    for path in dict.fromkeys(use.path for use in fresh):
        uses = [use for use in fresh if use.path == path]
        for use, creator in zip(uses, _load(path, uses), strict=True):
            _LOADED[use] = _facts(use, creator)
    return [_LOADED[use] for use in plugins]


def _load(path: Path, uses: Sequence[OperatorUse]) -> list[Any]:
    operators = [use.op for use in uses]
    project, shown = uses[0].project, _shown(uses[0])
    if path.suffix == ".py":
        return register_file(shown, operators, Guard(trt, project, uses[0].fail))
    return load_library(path, shown, operators, trt)


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
    return str(use.path.relative_to(use.project)) if use.path.is_relative_to(use.project) else use.path.name


def _check_parsers_library() -> None:
    """Find out in time what the parser aborts the process for: it opens the library by a name that no wheel has."""
    try:
        ctypes.CDLL(_PARSERS_LIBRARY)
    except OSError as error:
        problem = f"TensorRT-RTX looks for {_PARSERS_LIBRARY} when a graph has plugins, and there is none"
        hint = "put a folder with a link of this name to its library on LD_LIBRARY_PATH, as the workers have it"
        raise StageError(problem, hint) from error
