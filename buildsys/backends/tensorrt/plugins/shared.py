"""Shared libraries that hold TensorRT plugins: tried before TensorRT opens them, as it says little when it cannot.

That a library is made for this machine was checked where it came into the build, by the stage ``operators``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.plugins.python import VERSION, registered_creator
from buildsys.errors import StageError

_ENTRY_POINTS = (
    "getCreators",
    "getPluginCreators",
)  # what the registry looks for, the first for V3 plugins


def load_library(file: Path, shown: str, operators: Sequence[str], library: Library) -> list[Any]:
    """Load a plugin library, ``shown`` in messages, and return its creators of ``operators``, ``domain::Name``.

    Raises: StageError: it cannot be loaded, or lacks a creator.
    """
    _check_entry_point(file, shown)
    registry = library.trt.get_plugin_registry()
    before = set(_names(library))
    if registry.load_library(str(file)) is None:
        problem = f"{shown}: {library.title} takes no plugin from it"
        raise StageError(problem, "it has none, or one whose name is taken")
    return [_creator(library, operator, shown, before) for operator in operators]


def _check_entry_point(file: Path, shown: str) -> None:
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:  # a symbol or a library that it needs is missing: the loader names it
        reason = " ".join(str(error).replace(f"{file}:", "").split())
        raise StageError(f"{shown} cannot be loaded: {reason}", _hint(reason)) from error
    if not any(hasattr(library, name) for name in _ENTRY_POINTS):
        raise StageError(
            f"{shown} has neither {' nor '.join(_ENTRY_POINTS)}",
            "a plugin library exports one of them",
        )


def _hint(reason: str) -> str:
    if "libnvinfer" in reason:
        return "it is linked with TensorRT, and this engine is built by another library"
    return "link it with the library that has the symbol" if "undefined symbol" in reason else ""


def _creator(library: Library, operator: str, path: str, before: set[str]) -> Any:
    creator = registered_creator(library, operator)
    if creator is not None:
        return creator
    domain, _, name = operator.rpartition("::")
    found = ", ".join(name for name in _names(library) if name not in before) or "none"
    raise StageError(
        f"{path} has no plugin creator for the operator {operator}; it has {found}",
        f"the parser looks for the name {name}, the version {VERSION} and the namespace '' or '{domain}'",
    )


def _names(library: Library) -> list[str]:
    return [
        f"{creator.plugin_namespace}::{creator.name} {creator.plugin_version}"
        for creator in version_adapter.all_creators(library)
    ]
