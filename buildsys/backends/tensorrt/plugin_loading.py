"""Registration of an engine's plugins, before parsing or loading."""

from __future__ import annotations

import ctypes
import faulthandler
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildsys.backends.interface import BuildRequest, Figures, OperatorUse
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import FEATURES, TensorRTLibrary, join_or
from buildsys.backends.tensorrt.network import plugin_creator, plugin_wanted
from buildsys.backends.tensorrt.python_plugins import (
    PluginGuard,
    missing_creator,
    register_file,
    registered_creator,
)
from buildsys.errors import StageError
from buildsys.onnx_graphs.graph_reader import read_graph
from buildsys.system.files import sha256_of
from buildsys.system.suggestions import nearest

if TYPE_CHECKING:
    from onnx import NodeProto

_ENTRY_POINTS = ("getCreators", "getPluginCreators")  # for the registry, the first for V3 plugins
_PARSER_LIBRARY = "libtensorrt_rtx.so"  # TensorRT-RTX, by the parser's name for it
# in this process: the registry accepts each name once
_LOADED: dict[tuple[TensorRTLibrary, OperatorUse], Figures] = {}


def load_plugins(library: TensorRTLibrary, operators: Sequence[OperatorUse]) -> list[Figures]:
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
        operators_of, project = [use.op for use in uses], uses[0].project
        is_own = path.is_relative_to(project)
        name = str(path.relative_to(project)) if is_own else path.name
        if path.suffix == ".py":
            if not library.has("plugins in Python"):
                having = join_or(FEATURES["plugins in Python"])
                raise StageError(
                    f"{name}: {library.release} takes no plugins written in Python ({having} can)",
                    "build the plugin as a shared library",
                )
            creators = register_file(
                name, operators_of, PluginGuard(library, project, uses[0].fail)
            )
        else:
            creators = _load_library(path, name, operators_of, library)
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


def _load_library(
    file: Path, title: str, operators: Sequence[str], library: TensorRTLibrary
) -> list[Any]:
    """Load a plugin library; return its creators of ``operators``, ``domain::Name``.

    The loader opens it before TensorRT, which explains little. The stage ``operators`` has checked
    that it is made for this machine.
    Raises: StageError: it cannot be loaded, or has no such creator.
    """
    try:
        loaded = ctypes.CDLL(str(file))
    except OSError as error:
        reason = " ".join(str(error).replace(f"{file}:", "").split())
        hint = "link it with the library that has the missing symbol, and with this TensorRT"
        raise StageError(f"{title} cannot be loaded: {reason}", hint) from error
    if not any(hasattr(loaded, name) for name in _ENTRY_POINTS):
        text = f"{title} has neither {' nor '.join(_ENTRY_POINTS)}"
        raise StageError(text, "a plugin library exports one of them")
    registry = library.trt.get_plugin_registry()
    before = set(version_adapter.creator_names(library))
    if registry.load_library(str(file)) is None:
        text = f"{title}: {library.title} takes no plugin from it"
        raise StageError(text, "it has none, or one with a name that is taken")
    new = [name for name in version_adapter.creator_names(library) if name not in before]
    creators = []
    for operator in operators:
        creator = registered_creator(library, operator)
        if creator is None:
            raise missing_creator(title, operator, new)
        creators.append(creator)
    return creators


def bundled_plugins(library: TensorRTLibrary, request: BuildRequest) -> list[Figures]:
    """List the registered plugins that the parser will use.

    A network defined by hand chooses versions itself, so only the names are checked.
    Raises: StageError: the library has no such plugin.
    """
    operators = [use.op for use in request.operators if use.kind == "plugin" and use.path is None]
    if operators and not library.has("bundled plugins"):
        raise StageError(
            f"{library.release} ships no plugins, and {operators[0]} needs one",
            "add function to its entry in ops, with use: {tensorrt: plugin}, or build this engine"
            " with backend: tensorrt",
        )
    nodes: list[NodeProto] = []
    if operators and not request.definition:
        model = read_graph(request.onnx)
        from buildsys.onnx_graphs.onnx_file import all_nodes  # needs onnx

        bodies = (model.graph, *model.functions)
        nodes = [node for body in bodies for node in all_nodes(body)]
    names = [creator.name for creator in version_adapter.creators(library)]
    facts: list[Figures] = []
    for operator in operators:
        domain, _, name = operator.rpartition("::")
        if name not in names:
            near = nearest(name, names)
            hint = f"nearest: {', '.join(near)}" if near else "name the operator like its plugin"
            raise StageError(f"{library.release} has no plugin {name}", hint)
        creators = [
            _creator_of(library, node)
            for node in nodes
            if (node.domain, node.op_type) == (domain, name)
        ]
        by_version = {creator.plugin_version: creator for creator in creators}
        facts += [
            {
                "operator": operator,
                "name": name,
                "version": version,
                "namespace": creator.plugin_namespace,
                "bundled": library.release,
            }
            for version, creator in by_version.items()
        ]
    return facts


def _creator_of(library: TensorRTLibrary, node: NodeProto) -> Any:
    """Find the parser's creator for a node.

    Raises: StageError: there is none of this version and namespace.
    """
    creator = plugin_creator(library, node)
    if creator is not None:
        return creator
    version, namespace = plugin_wanted(node)
    where = f" in the namespace {namespace}" if namespace else ""
    versions = sorted(
        creator.plugin_version
        for creator in version_adapter.creators(library)
        if creator.name == node.op_type
    )
    raise StageError(
        f"{library.release} has no plugin {node.op_type} of version {version}{where}, only of"
        f" version {', '.join(versions)}",
        f"correct plugin_version or plugin_namespace of the node {node.name or node.output[0]}",
    )
