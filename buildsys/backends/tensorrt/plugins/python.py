"""Plugins in Python files of a project.

A file defines a class derived from ``IPluginCreatorV3One`` with a constructor without arguments
and the operator's name as ``name``. It may have several, for several operators. A file that
registers its creators itself, as the tutorials do, is accepted as well.
"""

from __future__ import annotations

from collections.abc import Sequence
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
VERSION = "1"  # for the parser, as ONNX nodes have no version
_REGISTERED: list[Any] = []  # creators: the registry does not keep them alive


def register_file(path: str, operators: Sequence[str], guard: Guard) -> list[Any]:
    """Register a project file's creators of operators, ``domain::Name``; return them.

    Raises: StageError: the file cannot be imported, has no such creator, or a name is taken.
    """
    for operator in operators:
        if registered_creator(guard.library, operator) is not None:
            name = operator.rpartition("::")[2]
            raise StageError(
                f"{path}: {guard.library.title} already has a plugin for {operator}: {name}",
                "give the operator another name, or each creator its domain as plugin_namespace",
            )
    module = load_module(path, guard.project)
    creators = []
    for operator in operators:
        creator = _find_creator(module, path, operator, guard)
        guard.wrap_creator(creator, f"{path}: plugin {creator.name}")
        registry = guard.trt.get_plugin_registry()
        # the file may have registered it on import
        is_known = registered_creator(guard.library, operator) is not None
        if not is_known and not registry.register_creator(creator, creator.plugin_namespace):
            text = f"{path}: {guard.library.title} refuses the creator {type(creator).__name__}"
            raise StageError(text)
        _REGISTERED.append(creator)
        creators.append(creator)
    return creators


def registered_creator(library: Library, operator: str) -> Any:
    """Return the parser's creator for ``domain::Name`` or None."""
    domain, _, name = operator.rpartition("::")
    for namespace in ("", domain):  # the parser's order
        creator = version_adapter.find_creator(library, name, VERSION, namespace)
        if creator is not None:
            return creator
    return None


def _find_creator(module: ModuleType, path: str, operator: str, guard: Guard) -> Any:
    domain, _, name = operator.rpartition("::")
    base = guard.trt.IPluginCreatorV3One
    derived = [
        item for item in vars(module).values() if isinstance(item, type) and issubclass(item, base)
    ]
    classes = [item for item in dict.fromkeys(derived) if item is not base]
    creators = [
        _make_creator(each, path, guard)
        for each in classes
        if not any(issubclass(other, each) and other is not each for other in classes)
    ]
    problem = f"{path} has no plugin creator for the operator {operator}"
    if not creators:
        hint = f"define a class derived from {guard.trt.__name__}.IPluginCreatorV3One"
        raise StageError(problem, hint)
    for creator in creators:
        if creator.name == name:
            _check_version_and_namespace(creator, path, domain)
            return creator
    found = ", ".join(f"{type(creator).__name__} ({creator.name})" for creator in creators)
    near = nearest(name, [creator.name for creator in creators], count=1)
    hint = f"did you mean {name} instead of {near[0]}?" if near else ""
    hint = hint or f"set name = '{name}' in the creator's __init__"
    raise StageError(f"{problem}, only {found}", hint)


def _check_version_and_namespace(creator: Any, path: str, domain: str) -> None:
    who = f"{path}: {type(creator).__name__}"
    if creator.plugin_version != VERSION:
        raise StageError(
            f"{who} has plugin_version '{creator.plugin_version}',"
            f" but the parser needs '{VERSION}'",
            f"set plugin_version = '{VERSION}'",
        )
    if creator.plugin_namespace not in ("", domain):
        raise StageError(
            f"{who} has plugin_namespace '{creator.plugin_namespace}',"
            f" but the operator's domain is '{domain}'",
            f"set plugin_namespace = '' or '{domain}'",
        )


def _make_creator(owner: type, path: str, guard: Guard) -> Any:
    what = f"{path}: making the creator {owner.__name__} failed"
    with reraise_as_stage_error(what, guard.project):
        creator = owner()
        missing = [name for name in _CREATOR_FIELDS if getattr(creator, name, None) is None]
        if not len(creator.field_names):  # the parser would read through a null pointer
            creator.field_names = guard.trt.PluginFieldCollection([])
    if missing:
        text = f"{path}: the creator {owner.__name__} does not set {' and '.join(missing)}"
        raise StageError(text, "set it in __init__")
    return creator
