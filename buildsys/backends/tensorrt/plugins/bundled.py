"""Plugins of TensorRT's own library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from buildsys.backends.interface import BuildRequest, Figures
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.parse import (
    PLUGIN_NAMESPACE,
    PLUGIN_VERSION,
    plugin_creator,
    plugin_wanted,
    text_attributes,
)
from buildsys.errors import StageError
from buildsys.onnx_graphs.graph_reader import read_graph
from buildsys.system.suggestions import nearest

if TYPE_CHECKING:
    from onnx import NodeProto

_FOR_PARSER = (PLUGIN_VERSION, PLUGIN_NAMESPACE)


def bundled_plugins(library: Library, request: BuildRequest) -> tuple[list[Figures], list[str]]:
    """Return the facts of the registered plugins that the parser will use, and warnings.

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
    facts: list[Figures] = []
    warnings: list[str] = []
    for operator in operators:
        domain, _, name = operator.rpartition("::")
        _check_name(library, name)
        used: dict[str, Any] = {}  # by version
        ignored: dict[str, None] = {}
        for node in nodes:
            if (node.domain, node.op_type) == (domain, name):
                creator = _creator_of(library, node)
                used[creator.plugin_version] = creator
                read = {*_FOR_PARSER, *(field.name for field in creator.field_names or ())}
                ignored |= dict.fromkeys(name for name in text_attributes(node) if name not in read)
        facts += [
            {
                "operator": operator,
                "name": name,
                "version": version,
                "namespace": creator.plugin_namespace,
                "bundled": library.release,
            }
            for version, creator in used.items()
        ]
        if ignored:
            names = ", ".join(ignored)
            text = f"{library.release} ignores attributes of {operator}: {names}"
            warnings.append(f"{text} (no fields of its plugin)")
    return facts, warnings


def _check_name(library: Library, name: str) -> None:
    names = [creator.name for creator in version_adapter.creators(library)]
    if name not in names:
        near = nearest(name, names)
        hint = f"nearest: {', '.join(near)}" if near else "name the operator like its plugin"
        raise StageError(f"{library.release} has no plugin {name}", hint)


def _creator_of(library: Library, node: NodeProto) -> Any:
    """Return the creator that the parser finds for a node.

    Raises: StageError: there is none of this version and namespace.
    """
    creator = plugin_creator(library, node)
    if creator is not None:
        return creator
    version, namespace = plugin_wanted(node)
    where = f" in the namespace {namespace}" if namespace else ""
    versions = {
        creator.plugin_version
        for creator in version_adapter.creators(library)
        if creator.name == node.op_type
    }
    raise StageError(
        f"{library.release} has no plugin {node.op_type} of version {version}{where}, only of"
        f" version {', '.join(sorted(versions))}",
        f"correct {' or '.join(_FOR_PARSER)} of the node {node.name or node.output[0]}",
    )
