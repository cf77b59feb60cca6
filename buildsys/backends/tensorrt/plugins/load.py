"""Registration of an engine's plugins, before parsing or loading."""

from __future__ import annotations

import ctypes
import faulthandler
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from buildsys.backends.interface import Figures, OperatorUse
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.enum_tables import join_or
from buildsys.backends.tensorrt.library import FEATURES, Library
from buildsys.backends.tensorrt.plugins.python import (
    VERSION,
    Guard,
    register_file,
    registered_creator,
)
from buildsys.errors import StageError
from buildsys.system.files import sha256_of

_ENTRY_POINTS = ("getCreators", "getPluginCreators")  # for the registry, the first for V3 plugins
_PARSER_LIBRARY = "libtensorrt_rtx.so"  # of TensorRT-RTX, by the parser's name for it
# in this process: the registry accepts each name once
_LOADED: dict[tuple[Library, OperatorUse], Figures] = {}


def load_plugins(library: Library, operators: Sequence[OperatorUse]) -> list[Figures]:
    """Register all plugins of operators; return the facts of those in files.

    A failing callback ends the stage, see ``Guard``.
    Raises: StageError: a file has no such plugin, cannot be loaded, or is not for this machine.
    """
    version_adapter.register_bundled_plugins(library)
    plugins = [(use, use.path) for use in operators if use.kind == "plugin" and use.path]
    new = [(use, path) for use, path in plugins if (library, use) not in _LOADED]
    if new:
        if library.has("parser in a library"):
            try:
                ctypes.CDLL(_PARSER_LIBRARY)  # in no wheel; without it, the parser aborts
            except OSError as error:
                raise StageError(
                    f"TensorRT-RTX needs {_PARSER_LIBRARY} for graphs with plugins, and it is"
                    " missing",
                    "add a folder with a link of this name to TensorRT-RTX's library to"
                    " LD_LIBRARY_PATH",
                ) from error
        # prints the Python line of a plugin that crashes
        faulthandler.enable(sys.__stderr__ or sys.stderr)
    for path in dict.fromkeys(path for _, path in new):
        uses = [use for use, its_path in new if its_path == path]
        names, first = [use.op for use in uses], uses[0]
        is_own = path.is_relative_to(first.project)
        name = str(path.relative_to(first.project)) if is_own else path.name
        if path.suffix == ".py":
            if not library.has("plugins in Python"):
                having = join_or(FEATURES["plugins in Python"])
                raise StageError(
                    f"{name}: {library.release} takes no plugins written in Python ({having} can)",
                    "build the plugin as a shared library",
                )
            creators = register_file(name, names, Guard(library, first.project, first.fail))
        else:
            creators = _load_library(path, name, names, library)
        for use, creator in zip(uses, creators, strict=True):
            _LOADED[library, use] = {
                "operator": use.op,
                "name": creator.name,
                "version": creator.plugin_version,
                "namespace": creator.plugin_namespace,
                "file": name,
                "file_sha256": sha256_of(path),
            }
    return [_LOADED[library, use] for use, _ in plugins]


def _load_library(file: Path, shown: str, operators: Sequence[str], library: Library) -> list[Any]:
    """Load a plugin library; return its creators of ``operators``, ``domain::Name``.

    The loader opens it before TensorRT, which explains little. The stage ``operators`` has checked
    that it is made for this machine.
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
    before = set(version_adapter.creator_names(library))
    if registry.load_library(str(file)) is None:
        text = f"{shown}: {library.title} takes no plugin from it"
        raise StageError(text, "it has none, or one with a name that is taken")
    creators = []
    for operator in operators:
        creator = registered_creator(library, operator)
        if creator is None:
            domain, _, name = operator.rpartition("::")
            found = [each for each in version_adapter.creator_names(library) if each not in before]
            raise StageError(
                f"{shown} has no plugin creator for the operator {operator};"
                f" it has {', '.join(found) or 'none'}",
                f"the parser needs the name {name}, the version {VERSION} and the namespace '' or"
                f" '{domain}'",
            )
        creators.append(creator)
    return creators
