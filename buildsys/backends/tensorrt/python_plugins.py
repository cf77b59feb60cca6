"""Plugins in Python files of a project.

A file defines classes derived from ``IPluginCreatorV3One``, each with a constructor without
arguments and an operator's name as ``name``, and may register them itself.

TensorRT's bindings print the exception of a callback and go on, with TensorRT-RTX 1.7 to a
segmentation fault, a damaged heap or an engine that looks like any other. So no failure is returned
to TensorRT: the process, which serves this stage only, reports it and ends.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import isroutine
from pathlib import Path
from types import ModuleType
from typing import Any

from buildsys.backends.interface import Fail
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import SINCE_10, TensorRTLibrary
from buildsys.errors import StageError
from buildsys.models.user_code import describe_exception, load_module, reraise_as_stage_error

ONLY = SINCE_10
_CREATOR_FIELDS = ("name", "plugin_version", "plugin_namespace")
VERSION = "1"  # for the parser, as ONNX nodes have no version
_REGISTERED: list[Any] = []  # creators: the registry does not keep them alive
# required methods of a plugin, by capability
_PLUGIN = ("clone", "get_capability_interface")
_BUILD = (
    "get_output_data_types",
    "get_output_shapes",
    "supports_format_combination",
    "configure_plugin",
)
_RUNTIME = ("get_fields_to_serialize", "attach_to_context", "on_shape_change", "enqueue")
_WITH_DEFAULT = ("get_workspace_size", "get_valid_tactics", "set_tactic", "destroy")
_CORE_NAMES = ("plugin_name", "plugin_version", "plugin_namespace")
_IS_GUARDED = "_buildsys_guarded"


def register_file(path: str, operators: Sequence[str], guard: "PluginGuard") -> list[Any]:
    """Register a project file's creators of operators, ``domain::Name``; return them."""
    library = guard.library
    for operator in operators:
        if registered_creator(library, operator) is not None:
            raise StageError(
                f"{path}: {library.title} already has a plugin for {operator}",
                "give the operator another name, or each creator its domain as plugin_namespace",
            )
    module = load_module(path, guard.project)
    creators = []
    for operator in operators:
        creator = _find_creator(module, path, operator, guard)
        guard.wrap(type(creator), ("create_plugin",), f"{path}: plugin {creator.name}")
        registry = library.trt.get_plugin_registry()
        # the file may have registered it on import
        is_known = registered_creator(library, operator) is not None
        if not is_known and not registry.register_creator(creator, creator.plugin_namespace):
            text = f"{path}: {library.title} refuses the creator {type(creator).__name__}"
            raise StageError(text)
        _REGISTERED.append(creator)
        creators.append(creator)
    return creators


def registered_creator(library: TensorRTLibrary, operator: str) -> Any:
    """Find the parser's creator for ``domain::Name`` or None."""
    domain, _, name = operator.rpartition("::")
    find = version_adapter.find_creator
    # the parser's order
    creators = (find(library, name, VERSION, namespace) for namespace in ("", domain))
    return next((creator for creator in creators if creator is not None), None)


def _find_creator(module: ModuleType, path: str, operator: str, guard: "PluginGuard") -> Any:
    domain, _, name = operator.rpartition("::")
    base = guard.library.trt.IPluginCreatorV3One
    classes = [
        item
        for item in dict.fromkeys(v for v in vars(module).values() if isinstance(v, type))
        if issubclass(item, base) and item is not base
    ]
    bases = {parent for item in classes for parent in item.__mro__[1:]}
    creators = []
    for owner in (owner for owner in classes if owner not in bases):
        what = f"{path}: making the creator {owner.__name__} failed"
        with reraise_as_stage_error(what, guard.project):
            creators.append(creator := owner())
            for attribute in _CREATOR_FIELDS:
                if getattr(creator, attribute, None) is None:
                    raise TypeError(f"it does not set {attribute}")
            if not len(creator.field_names):  # the parser would read through a null pointer
                creator.field_names = guard.library.trt.PluginFieldCollection([])
    for creator in creators:
        identity = (creator.name, creator.plugin_version)
        if identity == (name, VERSION) and creator.plugin_namespace in ("", domain):
            return creator
    raise missing_creator(path, operator, map(version_adapter.creator_name, creators))


@dataclass(frozen=True)
class PluginGuard:
    """Wrapper of the callbacks of creators and of all their plugins."""

    library: TensorRTLibrary  # the API that the plugin uses
    project: Path
    fail: Fail  # reports an error and ends the process

    def _wrap_plugin(self, plugin: Any, label: str) -> None:
        trt = self.library.trt
        self.wrap(type(plugin), _PLUGIN, label)
        capabilities = (  # one object may have all three
            (trt.PluginCapabilityType.CORE, (), _CORE_NAMES),
            (trt.PluginCapabilityType.BUILD, _BUILD, ("num_outputs",)),
            (trt.PluginCapabilityType.RUNTIME, _RUNTIME, ()),
        )
        for kind, callbacks, attributes in capabilities:
            part = plugin.get_capability_interface(kind)
            self.wrap(type(part), callbacks, label)
            for name in attributes:
                if getattr(part, name, None) in (None, -1):  # the bindings' values if it is not set
                    text = f"{label}: {type(part).__name__} does not set {name}"
                    self.fail(StageError(text, "set it in __init__"))

    def wrap(self, owner: type, callbacks: Iterable[str], label: str) -> None:
        """Replace callbacks in the class itself, for the bindings.

        ``label`` is for messages. The plugins of a creator are guarded as well.
        """
        for name in (*callbacks, *_WITH_DEFAULT):
            method = getattr(owner, name, None)
            # those of the bindings are compiled
            is_python = isroutine(method) and hasattr(method, "__code__")
            if not is_python and name in callbacks:
                text = f"{label}: {owner.__name__} has no method {name}"
                self.fail(StageError(text, "add the method to the class"))
            elif is_python and not hasattr(method, _IS_GUARDED):
                setattr(owner, name, self._guarded(name, method, label))

    def _guarded(self, name: str, method: Any, label: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(plugin: Any, *arguments: Any, **named: Any) -> Any:
            try:
                value = method(plugin, *arguments, **named)
            except BaseException as error:  # any kind: TensorRT would swallow it
                reason = describe_exception(error, self.project)
                failure = StageError(f"{label}: {name}() raised {reason}")
                failure.__cause__ = error
                self.fail(failure)
            problem = self._result_problem(name, plugin, value)
            if problem:
                self.fail(StageError(f"{label}: {name}() of {type(plugin).__name__} {problem}"))
            if name in ("create_plugin", "clone"):
                self._wrap_plugin(value, label)
            return value

        setattr(call, _IS_GUARDED, True)
        return call

    def _result_problem(self, name: str, plugin: Any, value: Any) -> str:
        """Return the problem of a callback's result, unchecked by TensorRT."""
        trt = self.library.trt
        types: dict[str, type] = {
            "create_plugin": trt.IPluginV3,
            "clone": trt.IPluginV3,
            "attach_to_context": trt.IPluginV3,
            "get_capability_interface": trt.IPluginCapability,
            "get_fields_to_serialize": trt.PluginFieldCollection,
            "supports_format_combination": int,  # includes bool
            "get_workspace_size": int,
        }
        lists: dict[str, type] = {
            "get_output_data_types": trt.DataType,
            "get_output_shapes": trt.DimsExprs,
            "get_valid_tactics": int,
        }
        if name in types and not isinstance(value, types[name]):
            return f"returned {value!r:.80} instead of {types[name].__name__}"
        if name not in lists:
            return ""
        is_list = isinstance(value, (list, tuple))
        if not is_list or not all(isinstance(item, lists[name]) for item in value):
            return f"returned {value!r:.80} instead of a list of {lists[name].__name__}"
        if name != "get_valid_tactics" and len(value) != plugin.num_outputs:
            return f"returned {len(value)} of {plugin.num_outputs} outputs"
        return ""


def missing_creator(title: str, operator: str, creators: Iterable[str]) -> StageError:
    """Return the error of a file without the plugin creator of an operator."""
    domain, _, name = operator.rpartition("::")
    return StageError(
        f"{title} has no plugin creator for the operator {operator};"
        f" it has {', '.join(creators) or 'none'}",
        f"the parser needs the name {name}, the version {VERSION} and the namespace '' or"
        f" '{domain}'",
    )
