"""Guard around Python plugins: failing callbacks end the stage.

TensorRT's bindings print the exception of a callback and go on with a status that the caller may
ignore. Seen with TensorRT-RTX 1.7: an exception in ``clone`` is a segmentation fault, one in
``get_capability_interface`` damages the heap, after one in ``get_fields_to_serialize`` or
``get_workspace_size`` the engine looks like any other. So no failure is returned to TensorRT: the
process, which serves this stage only, reports it and ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import isroutine
from pathlib import Path
from typing import Any

from buildsys.backends.interface import Fail
from buildsys.backends.tensorrt.library import SINCE_10, Library
from buildsys.errors import StageError
from buildsys.models.user_code import describe_exception, with_article

ONLY = SINCE_10
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


@dataclass(frozen=True)
class Guard:
    """Wrapper of the callbacks of creators and of all their plugins."""

    library: Library  # the API that the plugin uses
    project: Path
    fail: Fail  # reports an error and ends the process

    @property
    def trt(self) -> Any:
        """Return the bindings."""
        return self.library.trt

    def wrap_creator(self, creator: Any, label: str) -> None:
        """Guard a creator and its plugins; ``label`` is for messages."""
        self._wrap(type(creator), ("create_plugin",), label)

    def _wrap_plugin(self, plugin: Any, label: str) -> None:
        trt = self.trt
        self._wrap(type(plugin), _PLUGIN, label)
        capabilities = (  # one object may have all three
            (trt.PluginCapabilityType.CORE, (), _CORE_NAMES),
            (trt.PluginCapabilityType.BUILD, _BUILD, ("num_outputs",)),
            (trt.PluginCapabilityType.RUNTIME, _RUNTIME, ()),
        )
        for kind, callbacks, attributes in capabilities:
            part = plugin.get_capability_interface(kind)
            self._wrap(type(part), callbacks, label)
            for name in attributes:
                if getattr(part, name, None) in (None, -1):  # the bindings' values if it is not set
                    text = f"{label}: {type(part).__name__} does not set {name}"
                    self.fail(StageError(text, "set it in __init__"))

    def _wrap(self, owner: type, callbacks: Iterable[str], label: str) -> None:
        """Replace callbacks in the class itself, for the bindings."""
        for name in (*callbacks, *_WITH_DEFAULT):
            method = getattr(owner, name, None)
            is_python = isroutine(method) and hasattr(
                method, "__code__"
            )  # those of the bindings are compiled
            if not is_python:
                if name in callbacks:
                    self.fail(StageError(f"{label}: {owner.__name__} has no method {name}"))
            elif not hasattr(method, _IS_GUARDED):
                setattr(owner, name, self._guarded(name, method, label))

    def _guarded(self, name: str, method: Any, label: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(plugin: Any, *arguments: Any, **named: Any) -> Any:
            try:
                value = method(plugin, *arguments, **named)
            except BaseException as error:  # of any kind: TensorRT would swallow it
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
        trt = self.trt
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
            return f"returned {_describe(value)} instead of {with_article(types[name].__name__)}"
        if name not in lists:
            return ""
        is_list = isinstance(value, (list, tuple))
        if not is_list or not all(isinstance(item, lists[name]) for item in value):
            return f"returned {_describe(value)} instead of a list of {lists[name].__name__}"
        if name != "get_valid_tactics" and len(value) != plugin.num_outputs:
            return f"returned {len(value)} of {plugin.num_outputs} outputs"
        return ""


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (list, tuple)):
        kinds = dict.fromkeys(type(item).__name__ for item in value)
        return f"a {type(value).__name__} of {', '.join(kinds) or 'nothing'}"
    return with_article(type(value).__name__)
