"""Python files of a project that hold TensorRT plugins: finds the creator of an operator, checks and registers it.

A file defines a class derived from ``IPluginCreatorV3One`` that is made without arguments, and whose ``name`` is the
operator's. It may have several, for several operators. A file that registers its creators itself, as the tutorials
do, is taken as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import SINCE_10, Library
from buildsys.backends.tensorrt.plugins.callback_guard import Guard
from buildsys.errors import StageError
from buildsys.models.user_code import load_module, reraise_as_stage_error
from buildsys.system.suggestions import nearest

ONLY = SINCE_10
_CREATOR_FIELDS = ("name", "plugin_version", "plugin_namespace")
VERSION = "1"  # what the parser asks for, as ONNX nodes have no version of their own
_KEPT: list[Any] = []  # creators: the registry does not keep them alive


def register_file(path: str, operators: Sequence[str], guard: Guard) -> list[Any]:
    """Register the creators of operators, ``domain::Name``, that a Python file of the project has; return them.

    Raises: StageError: the file cannot be imported, it lacks a creator, or a name is taken.
    """
    for operator in operators:
        if registered_creator(guard.library, operator) is not None:
            _, _, name = operator.rpartition("::")
            problem = f"{path}: {guard.library.title} knows another plugin that {operator} would be taken for: {name}"
            raise StageError(
                problem,
                "give the operator another name, or each creator its domain as plugin_namespace",
            )
    module = load_module(path, guard.project)
    return [_register(module, path, operator, guard) for operator in operators]


def _register(module: ModuleType, path: str, operator: str, guard: Guard) -> Any:
    creator = _find_creator(module, path, operator, guard)
    guard.watch_creator(creator, f"{path}: plugin {creator.name}")
    registry = guard.trt.get_plugin_registry()
    known = registered_creator(guard.library, operator)  # the file may do it when it is imported
    if known is None and not registry.register_creator(creator, creator.plugin_namespace):
        raise StageError(
            f"{path}: {guard.library.title} does not take the creator {type(creator).__name__}"
        )
    _KEPT.append(creator)
    return creator


def registered_creator(library: Library, operator: str) -> Any:
    """Return the creator that the parser would find for ``domain::Name``, None when there is none."""
    domain, _, name = operator.rpartition("::")
    found = (
        version_adapter.find_creator(library, name, VERSION, namespace)
        for namespace in ("", domain)
    )  # the parser's order
    return next((creator for creator in found if creator is not None), None)


def _find_creator(module: ModuleType, path: str, operator: str, guard: Guard) -> Any:
    domain, _, name = operator.rpartition("::")
    creators = [_make(owner, path, guard) for owner in _creator_classes(module, guard.trt)]
    if not creators:
        hint = f"define a class derived from {guard.trt.__name__}.IPluginCreatorV3One"
        raise StageError(f"{path} has no plugin creator for the operator {operator}", hint)
    for creator in creators:
        if creator.name == name:
            _check_place(creator, path, domain)
            return creator
    found = ", ".join(f"{type(creator).__name__} ({creator.name})" for creator in creators)
    near = nearest(name, [creator.name for creator in creators], count=1)
    hint = (
        f"did you mean {name} instead of {near[0]}?"
        if near
        else f"set name = '{name}' in the creator's __init__"
    )
    raise StageError(
        f"{path} has no plugin creator for the operator {operator}, only {found}", hint
    )


def _check_place(creator: Any, path: str, domain: str) -> None:
    """Check what the parser looks for beside the name."""
    who = f"{path}: {type(creator).__name__}"
    if creator.plugin_version != VERSION:
        problem = f"{who} has plugin_version '{creator.plugin_version}', and the parser looks for '{VERSION}'"
        raise StageError(problem, f"set plugin_version = '{VERSION}'")
    if creator.plugin_namespace not in ("", domain):
        problem = f"{who} has plugin_namespace '{creator.plugin_namespace}', and the operator's domain is '{domain}'"
        raise StageError(problem, f"set plugin_namespace = '' or '{domain}'")


def _creator_classes(module: ModuleType, trt: ModuleType) -> Iterator[type]:
    """Yield the creators that a file defines or imports, without classes that others of them derive from."""
    base = trt.IPluginCreatorV3One
    found = [
        item for item in vars(module).values() if isinstance(item, type) and issubclass(item, base)
    ]
    own = [item for item in dict.fromkeys(found) if item is not base]
    return (
        item
        for item in own
        if not any(issubclass(other, item) and other is not item for other in own)
    )


def _make(owner: type, path: str, guard: Guard) -> Any:
    with reraise_as_stage_error(
        f"{path}: making the creator {owner.__name__} failed", guard.project
    ):
        creator = owner()
        missing = [name for name in _CREATOR_FIELDS if getattr(creator, name, None) is None]
        if not len(creator.field_names):  # not set: the parser would read through a null pointer
            creator.field_names = guard.trt.PluginFieldCollection([])
    if missing:
        problem = f"{path}: the creator {owner.__name__} does not set {' and '.join(missing)}"
        raise StageError(problem, "set it in __init__")
    return creator
