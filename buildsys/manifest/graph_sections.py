"""Sections absent from some kinds of models."""

from __future__ import annotations

from pathlib import Path

from buildsys.manifest.value_tree import ValueNode
from buildsys.system.backend_registry import describe_backend, find_package

GRAPH_SECTIONS = (  # about the ONNX graph, which a network defined by hand does not have
    "export", "symbolics", "translations", "surgery", "simplify", "convert", "calibration",
    "quantize", "search", "optimize", "quantize_weights",
)  # fmt: skip
NETWORK_SECTIONS = (  # about the network, which a model of commands does not have
    "source", "inputs", "call", "outputs", "dims", "ops", *GRAPH_SECTIONS, "validate", "engines",
    "verify", "bench", "gates",
)  # fmt: skip


def without_inherited(tree: ValueNode, file: Path) -> ValueNode:
    """Drop sections of shared files that are about another kind of model.

    The checks refuse such sections in ``file``, the model's own manifest.
    """
    source = tree.get("source")
    sections: tuple[str, ...] = ()
    if source is None or source.value is None:
        commands = tree.get("commands")
        has_commands = commands is not None and isinstance(commands.value, list) and commands.value
        sections = (*NETWORK_SECTIONS, "dynamic_axes") if has_commands else ()
    elif source.get("tensorrt") is not None:
        sections = GRAPH_SECTIONS
    nodes = ((name, tree.get(name)) for name in sections)
    return tree.without(*(name for name, node in nodes if node and node.origin.file != file))


def without_inherited_engines(tree: ValueNode, file: Path) -> ValueNode:
    """Drop engines of shared files that cannot build a network defined by hand.

    All of them stay if there is no other: the model would have no engine.
    """
    source, engines = tree.get("source"), tree.get("engines")
    if source is None or source.get("tensorrt") is None or engines is None:
        return tree
    if engines.origin.file == file or not isinstance(engines.value, list):
        return tree
    usable = [engine for engine in engines.value if _takes_definition(engine)]
    return tree.with_member("engines", ValueNode(usable or engines.value, engines.origin))


def _takes_definition(engine: ValueNode) -> bool:
    """Check an engine's backend; unknown ones are refused elsewhere."""
    backend = engine.get("backend")
    name = backend.value if backend else None
    if not isinstance(name, str) or find_package(name) is None:
        return True
    description = describe_backend(name)
    return description.takes_definition or bool(description.problem)
