"""Find the names of TensorRT in ``buildsys.backends.tensorrt`` by generation."""

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import buildsys
from buildsys.backends.tensorrt import library

HERE = Path(__file__).parent
PACKAGE = Path(buildsys.__file__).parent / "backends" / "tensorrt"
# without anything of the library
NOT_TENSORRT = {f"{name}.py" for name in (
    "backend", "compatibility", "description", "options",
)}  # fmt: skip
MODULES = sorted(
    str(path.relative_to(PACKAGE))
    for path in PACKAGE.rglob("*.py")
    if path.name not in NOT_TENSORRT
)
LISTS = {
    library.TRT_8: "tensorrt-8.6.0", library.TRT_10: "tensorrt-10.16.1",
    library.TRT_11: "tensorrt-11.4.0",
    library.RTX: "tensorrt_rtx-1.7.1",
}  # fmt: skip
API: dict[str, dict[str, list[str]]] = {
    generation: json.loads((HERE / "trt_api" / f"{name}.json").read_text())["api"]
    for generation, name in LISTS.items()
}
# name of a variable or attribute anywhere in the package -> TensorRT class of its value
CLASS_OF_VARIABLE = {
    "builder": "Builder", "config": "IBuilderConfig", "network": "INetworkDefinition",
    "parser": "OnnxParser", "refitter": "Refitter", "parser_refitter": "OnnxParserRefitter",
    "error": "ParserError", "layer": "ILayer", "tensor": "ITensor",
    "profile": "IOptimizationProfile",
    "inspector": "EngineInspector", "engine": "ICudaEngine", "context": "IExecutionContext",
    "runtime": "Runtime",
    "registry": "IPluginRegistry", "creator": "IPluginCreator", "timing_cache": "ITimingCache",
    "total": "ITimingCache",
    "empty_cache": "ITimingCache", "runtime_config": "IRuntimeConfig",
    "serialization_config": "ISerializationConfig", "kernels": "IRuntimeCache",
    "trt": "",
}  # fmt: skip
# expressions with such a name, but of our own or Python's classes
NOT_TENSORRT = {
    "request.engine", "request.timing_cache", "type(creator)", "version_adapter",
    "plugin",  # written by the user, in Python
    "error.problem",
}  # fmt: skip
# TensorRT's members with names that other objects have as well
COMMON_MEMBERS = {
    "name", "value", "type", "shape", "dtype", "engine", "builder", "logger", "flags", "metadata",
    "update", "reset", "node",
    "location", "profiler", "desc", "file", "line", "code", "log",
}  # fmt: skip


class Use(NamedTuple):
    """A name of TensorRT in the source: ``owner`` is its class, or "" for the module."""

    owner: str
    name: str
    generations: tuple[str, ...]
    where: str


def uses(source: str, module: str) -> Iterator[Use]:
    """Yield the names of TensorRT in a module's source."""
    tree = ast.parse(source)
    yield from _uses(tree, _module_generations(tree), module)


def unclassified(source: str, module: str) -> list[str]:
    """Return attributes named like TensorRT's on expressions of unknown class."""
    members = {
        name
        for api in API.values()
        for owner in CLASS_OF_VARIABLE.values()
        for name in api.get(owner, ())
    } - COMMON_MEMBERS
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or ast.unparse(node.value) in NOT_TENSORRT:
            continue
        if node.attr in members and _owner_of(node.value) is None:
            found.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
    return found


def missing(use: Use) -> list[str]:
    """Return the generations without a name, despite its use."""
    return [each for each in use.generations if use.name not in _names(API[each], use.owner)]


def _names(api: dict[str, list[str]], owner: str) -> list[str]:
    return api.get(owner, []) if owner else list(api)


def _uses(node: ast.AST, generations: tuple[str, ...], module: str) -> Iterator[Use]:
    if isinstance(node, (ast.If, ast.IfExp)):
        within, otherwise = _branches(node.test, generations)
        yield from _uses(node.test, generations, module)
        yield from _uses_in_block(_block(node.body), within, module)
        yield from _uses_in_block(_block(node.orelse), otherwise, module)
        return
    if isinstance(node, ast.Attribute):
        owner = _owner_of(node.value)
        if owner is not None and not node.attr.startswith("__"):
            yield Use(owner, node.attr, generations, f"{module}:{node.lineno}")
    for _, value in ast.iter_fields(node):
        if isinstance(value, list):
            yield from _uses_in_block(
                [each for each in value if isinstance(each, ast.AST)], generations, module
            )
        elif isinstance(value, ast.AST):
            yield from _uses(value, generations, module)


def _uses_in_block(
    nodes: Sequence[ast.AST], generations: tuple[str, ...], module: str
) -> Iterator[Use]:
    for node in nodes:
        yield from _uses(node, generations, module)
        if isinstance(node, ast.If) and isinstance(node.body[-1], (ast.Return, ast.Raise)):
            generations = _branches(node.test, generations)[1]


def _block(found: ast.expr | list[ast.stmt]) -> list[ast.AST]:
    return list(found) if isinstance(found, list) else [found]


def _branches(
    test: ast.expr, generations: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the possible generations for a true and a false test."""
    if isinstance(test, ast.BoolOp):
        narrowed = [_branches(each, generations) for each in test.values]
        # of "a and b", both hold in the body, and either may fail otherwise; "a or b" is the
        # reverse
        if isinstance(test.op, ast.And):
            bodies = set(generations).intersection(*(set(body) for body, _ in narrowed))
            return tuple(each for each in generations if each in bodies), generations
        rest = set(generations).intersection(*(set(otherwise) for _, otherwise in narrowed))
        return generations, tuple(each for each in generations if each in rest)
    if not (
        isinstance(test, ast.Compare)
        and ast.unparse(test.left) == "library.generation"
        and hasattr(library, ast.unparse(test.comparators[0]))
    ):
        return generations, generations
    named = _value(test.comparators[0])
    within = tuple(each for each in generations if each in named)
    otherwise = tuple(each for each in generations if each not in named)
    is_negative = isinstance(test.ops[0], (ast.NotEq, ast.NotIn))
    return (otherwise, within) if is_negative else (within, otherwise)


def _owner_of(value: ast.expr) -> str | None:
    text = ast.unparse(value)
    if text in NOT_TENSORRT:
        return None
    if isinstance(value, ast.Attribute) and _owner_of(value.value) == "":  # trt.DataType.FLOAT
        return value.attr
    return CLASS_OF_VARIABLE.get(text.rpartition(".")[2].lstrip("_"))


def _module_generations(tree: ast.Module) -> tuple[str, ...]:
    """Return the generations in a module's ``ONLY = …``; all without one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ONLY":
            return _value(node.value)
    return library.GENERATIONS


def _value(argument: ast.expr) -> tuple[str, ...]:
    if isinstance(argument, ast.Subscript):  # FEATURES["…"]
        return library.FEATURES[ast.literal_eval(argument.slice)]
    text = ast.unparse(argument).removeprefix("*").removeprefix("version_adapter.")
    found = getattr(library, text)
    return (found,) if isinstance(found, str) else tuple(found)
