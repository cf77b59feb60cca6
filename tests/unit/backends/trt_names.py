"""Find every name of TensorRT that the package ``buildsys.backends.tensorrt`` uses, and for which versions it does."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import buildsys
from buildsys.backends.tensorrt import enum_tables, library

HERE = Path(__file__).parent
PACKAGE = Path(buildsys.__file__).parent / "backends" / "tensorrt"
MODULES = sorted(
    str(path.relative_to(PACKAGE))
    for path in PACKAGE.rglob("*.py")
    if path != PACKAGE / "backend.py"
)
LISTS = {
    library.TRT_8: "tensorrt-8.6.0", library.TRT_10: "tensorrt-10.16.1", library.TRT_11: "tensorrt-11.4.0",
    library.RTX: "tensorrt_rtx-1.7.1",
}  # fmt: skip
API: dict[str, dict[str, list[str]]] = {
    generation: json.loads((HERE / "trt_api" / f"{name}.json").read_text())["api"]
    for generation, name in LISTS.items()
}
# what a variable or attribute of this name holds, wherever it is in the package
OWNERS = {
    "builder": "Builder", "config": "IBuilderConfig", "network": "INetworkDefinition", "parser": "OnnxParser",
    "error": "ParserError", "layer": "ILayer", "tensor": "ITensor", "profile": "IOptimizationProfile",
    "inspector": "EngineInspector", "engine": "ICudaEngine", "context": "IExecutionContext", "runtime": "Runtime",
    "registry": "IPluginRegistry", "creator": "IPluginCreator", "timing_cache": "ITimingCache", "total": "ITimingCache",
    "runtime_config": "IRuntimeConfig", "kernels": "IRuntimeCache",
    "trt": "",
}  # fmt: skip
# expressions that are called so and are ours, or Python's
OURS = {
    "request.engine", "request.timing_cache", "type(creator)", "version_adapter",
    "plugin",  # written by the user, in Python
    "error.problem",
}  # fmt: skip
# members that other objects have as well: an attribute of this name alone says nothing
USUAL = {
    "name", "value", "type", "shape", "dtype", "engine", "builder", "logger", "flags", "metadata", "update", "reset",
    "location", "profiler", "desc", "file", "line", "code", "log",
}  # fmt: skip


class Use(NamedTuple):
    """A name of TensorRT in the source: ``owner`` is its class, or "" for the module."""

    owner: str
    name: str
    generations: tuple[str, ...]
    where: str


def uses(source: str, module: str) -> Iterator[Use]:
    """Yield what a module's source uses of TensorRT."""
    tree = ast.parse(source)
    yield from _uses(tree, _module_generations(tree), module)


def unclassified(source: str, module: str) -> list[str]:
    """Return attributes that have the name of a member of TensorRT, on expressions that ``OWNERS`` does not know."""
    members = {
        name for api in API.values() for owner in OWNERS.values() for name in api.get(owner, ())
    } - USUAL
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or ast.unparse(node.value) in OURS:
            continue
        if node.attr in members and _owner_of(node.value) is None:
            found.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
    return found


def missing(use: Use) -> list[str]:
    """Return the generations for which a name is used and which do not have it."""
    return [each for each in use.generations if use.name not in _names(API[each], use.owner)]


def table_uses() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield enumeration, member and generations of every entry in the tables."""
    for values in vars(enum_tables).values():
        if isinstance(values, enum_tables.Values):
            for member in values.members.values():
                yield values.enumeration, member.name, member.generations


def _names(api: dict[str, list[str]], owner: str) -> list[str]:
    return api.get(owner, []) if owner else list(api)


def _uses(node: ast.AST, generations: tuple[str, ...], module: str) -> Iterator[Use]:
    for child in ast.iter_child_nodes(node):
        narrowed = generations
        if isinstance(child, ast.FunctionDef):
            narrowed = _declared(child.decorator_list) or generations
        elif isinstance(child, ast.Attribute):
            owner = _owner_of(child.value)
            if owner is not None and not child.attr.startswith("__"):
                yield Use(owner, child.attr, generations, f"{module}:{child.lineno}")
        yield from _uses(child, narrowed, module)


def _owner_of(value: ast.expr) -> str | None:
    text = ast.unparse(value)
    if text in OURS:
        return None
    if isinstance(value, ast.Attribute) and _owner_of(value.value) == "":  # trt.DataType.FLOAT
        return value.attr
    return OWNERS.get(text.rpartition(".")[2].lstrip("_"))


def _declared(decorators: list[ast.expr]) -> tuple[str, ...]:
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("only"):
            return tuple(name for argument in decorator.args for name in _value(argument))
    return ()


def _module_generations(tree: ast.Module) -> tuple[str, ...]:
    """Return what a module says of itself with ``ONLY = …``; all generations when it says nothing."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ONLY":
            return _value(node.value)
    return library.GENERATIONS


def _value(argument: ast.expr) -> tuple[str, ...]:
    text = ast.unparse(argument).removeprefix("*").removeprefix("version_adapter.")
    found = getattr(enum_tables, text, None) or getattr(library, text)
    return (found,) if isinstance(found, str) else tuple(found)
