"""Plugins in shared libraries.

The loader opens them before TensorRT, which explains little.
The stage ``operators`` has checked that a library is made for this machine.
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

_ENTRY_POINTS = ("getCreators", "getPluginCreators")  # for the registry, the first for V3 plugins


def load_library(file: Path, shown: str, operators: Sequence[str], library: Library) -> list[Any]:
    """Load a plugin library; return its creators of ``operators``.

    Operators are given as ``domain::Name``; ``shown`` is the file in messages.
    Raises: StageError: it cannot be loaded, or has no such creator.
    """
    try:
        loaded = ctypes.CDLL(str(file))
    except OSError as error:  # the loader names the missing symbol or library
        reason = " ".join(str(error).replace(f"{file}:", "").split())
        hint = ""
        if "libnvinfer" in reason:
            hint = "it is linked with TensorRT, but this engine is built by another library"
        elif "undefined symbol" in reason:
            hint = "link it with the library that has the symbol"
        raise StageError(f"{shown} cannot be loaded: {reason}", hint) from error
    if not any(hasattr(loaded, name) for name in _ENTRY_POINTS):
        text = f"{shown} has neither {' nor '.join(_ENTRY_POINTS)}"
        raise StageError(text, "a plugin library exports one of them")
    registry = library.trt.get_plugin_registry()
    before = set(_creator_names(library))
    if registry.load_library(str(file)) is None:
        text = f"{shown}: {library.title} takes no plugin from it"
        raise StageError(text, "it has none, or one with a name that is taken")
    creators = []
    for operator in operators:
        creator = registered_creator(library, operator)
        if creator is None:
            domain, _, name = operator.rpartition("::")
            found = [each for each in _creator_names(library) if each not in before]
            raise StageError(
                f"{shown} has no plugin creator for the operator {operator};"
                f" it has {', '.join(found) or 'none'}",
                f"the parser needs the name {name}, the version {VERSION} and the namespace '' or"
                f" '{domain}'",
            )
        creators.append(creator)
    return creators


def _creator_names(library: Library) -> list[str]:
    return [
        f"{creator.plugin_namespace}::{creator.name} {creator.plugin_version}"
        for creator in version_adapter.all_creators(library)
    ]
