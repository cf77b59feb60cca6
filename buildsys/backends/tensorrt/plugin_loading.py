"""Registration of an engine's plugins, before parsing or loading."""

import ctypes
import faulthandler
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from buildsys.backends.interface import BuildRequest, Figures, OperatorUse
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.compatibility import join_or
from buildsys.backends.tensorrt.library import FEATURES, TensorRTLibrary
from buildsys.backends.tensorrt.python_plugins import (
    PluginGuard,
    missing_creator,
    register_file,
    registered_creator,
)
from buildsys.errors import StageError
from buildsys.system.files import sha256_of

_PARSER_LIBRARY = "libtensorrt_rtx.so"  # TensorRT-RTX, by the parser's name for it
# in this process: the registry accepts each name once
_LOADED: dict[tuple[TensorRTLibrary, OperatorUse], Figures] = {}


def load_plugins(library: TensorRTLibrary, operators: Sequence[OperatorUse]) -> list[Figures]:
    """Register all plugins of operators; return the facts of those in files.

    A failing callback ends the stage, see ``Guard``.
    """
    version_adapter.register_bundled_plugins(library)
    plugins = [(use, use.path) for use in operators if use.kind == "plugin" and use.path]
    new: dict[Path, list[OperatorUse]] = {}
    for use, path in plugins:
        if (library, use) not in _LOADED:
            new.setdefault(path, []).append(use)
    if new and library.has("parser in a library"):
        try:
            ctypes.CDLL(_PARSER_LIBRARY)  # in no wheel; without it, the parser aborts
        except OSError as error:
            raise StageError(
                f"TensorRT-RTX needs {_PARSER_LIBRARY} for plugins, and it is missing",
                "add a folder with a link of this name to its library to LD_LIBRARY_PATH",
            ) from error
    if new:  # prints the Python line of a plugin that crashes
        faulthandler.enable(sys.__stderr__ or sys.stderr)
    for path, uses in new.items():
        project, operators_of = uses[0].project, [use.op for use in uses]
        name = str(path.relative_to(project)) if path.is_relative_to(project) else path.name
        if path.suffix != ".py":
            creators = _load_library(path, name, operators_of, library)
        elif library.has("plugins in Python"):
            guard = PluginGuard(library, project, uses[0].fail)
            creators = register_file(name, operators_of, guard)
        else:
            having = join_or(FEATURES["plugins in Python"])
            raise StageError(
                f"{name}: {library.release} takes no plugins written in Python ({having} can)",
                "build the plugin as a shared library",
            )
        for use, creator in zip(uses, creators, strict=True):
            facts = {**_facts(use.op, creator), "file": name, "file_sha256": sha256_of(path)}
            _LOADED[library, use] = facts
    return [_LOADED[library, use] for use, _ in plugins]


def _facts(operator: str, creator: Any) -> Figures:
    return {
        "operator": operator,
        "name": creator.name,
        "version": creator.plugin_version,
        "namespace": creator.plugin_namespace,
    }


def _load_library(
    file: Path, title: str, operators: Sequence[str], library: TensorRTLibrary
) -> list[Any]:
    """Load a plugin library; return its creators of ``operators``, ``domain::Name``.

    The loader opens it before TensorRT, which explains little. The stage ``operators`` has checked
    that it is made for this machine.
    """
    try:
        ctypes.CDLL(str(file))
    except OSError as error:
        reason = " ".join(str(error).replace(f"{file}:", "").split())
        hint = "link it with the library that has the missing symbol, and with this TensorRT"
        raise StageError(f"{title} cannot be loaded: {reason}", hint) from error
    registry = library.trt.get_plugin_registry()
    before = set(map(version_adapter.creator_name, version_adapter.creators(library)))
    if registry.load_library(str(file)) is None:
        text = f"{title}: {library.title} takes no plugin from it"
        hint = "it exports no getCreators or getPluginCreators, or one of its names is taken"
        raise StageError(text, hint)
    after = map(version_adapter.creator_name, version_adapter.creators(library))
    creators = [registered_creator(library, operator) for operator in operators]
    for operator, creator in zip(operators, creators, strict=True):
        if creator is None:
            raise missing_creator(title, operator, (name for name in after if name not in before))
    return creators


def bundled_plugins(library: TensorRTLibrary, request: BuildRequest) -> list[Figures]:
    """List the registered plugins that operators of the request use, in all versions."""
    operators = [use.op for use in request.operators if use.kind == "plugin" and use.path is None]
    facts: list[Figures] = []
    for operator in operators:
        name = operator.rpartition("::")[2]
        registered = version_adapter.creators(library)
        named = [creator for creator in registered if creator.name == name]
        if not named:
            hint = "name the operator like its plugin, or add function to its entry in ops"
            raise StageError(f"{library.release} has no plugin {name}", hint)
        facts += [{**_facts(operator, own), "bundled": library.release} for own in named]
    return facts
