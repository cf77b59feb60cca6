"""Stands between TensorRT and a plugin that is written in Python: a failing callback ends the stage with its reason.

TensorRT's bindings print what a callback raises and go on with a status that its caller may not look at. Seen with
TensorRT-RTX 1.7: an exception in ``clone`` is a segmentation fault, one in ``get_capability_interface`` damages the
heap, after one in ``get_fields_to_serialize`` or ``get_workspace_size`` there is an engine that looks like any other.
So no failure is handed to TensorRT at all: the process, which works for this stage alone, tells it and ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import isroutine
from pathlib import Path
from typing import Any, NoReturn

from buildsys.backends.interface import Fail
from buildsys.backends.tensorrt.library import SINCE_10, Library
from buildsys.errors import StageError
from buildsys.models.user_code import describe_exception, with_article

ONLY = SINCE_10
# the methods that a plugin must have, by the capability that they belong to
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
    """Wraps the callbacks of creators, and of all plugins that come from them."""

    library: Library  # that the plugin is written for
    project: Path
    fail: Fail  # tells an error and ends the process

    @property
    def trt(self) -> Any:
        """Return the bindings."""
        return self.library.trt

    def watch_creator(self, creator: Any, label: str) -> None:
        """Watch a creator, and all that it creates; ``label`` says in messages which plugin it is."""
        self._wrap(type(creator), ("create_plugin",), label)

    def _watch_plugin(self, plugin: Any, label: str) -> None:
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
            self._require(part, attributes, label)

    def _require(self, part: Any, attributes: Iterable[str], label: str) -> None:
        for name in attributes:
            if getattr(part, name, None) in (
                None,
                -1,
            ):  # what the bindings say of one that is not set
                self.fail(
                    StageError(
                        f"{label}: {type(part).__name__} does not set {name}", "set it in __init__"
                    )
                )

    def _wrap(self, owner: type, callbacks: Iterable[str], label: str) -> None:
        """Replace callbacks in the class itself: the bindings look them up there."""
        for name in (*callbacks, *_WITH_DEFAULT):
            method = getattr(owner, name, None)
            if not _is_python(method):
                if name in callbacks:
                    self.fail(StageError(f"{label}: {owner.__name__} has no method {name}"))
            elif not hasattr(method, _IS_GUARDED):
                setattr(owner, name, self._guarded(name, method, label))

    def _guarded(self, name: str, method: Any, label: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(plugin: Any, *arguments: Any, **named: Any) -> Any:
            try:
                value = method(plugin, *arguments, **named)
            except BaseException as error:  # whatever it is, TensorRT would swallow it
                reason = describe_exception(error, self.project)
                self._end(StageError(f"{label}: {name}() raised {reason}"), error)
            problem = self._problem(name, plugin, value)
            if problem:
                self.fail(StageError(f"{label}: {name}() of {type(plugin).__name__} {problem}"))
            if name in ("create_plugin", "clone"):
                self._watch_plugin(value, label)
            return value

        setattr(call, _IS_GUARDED, True)
        return call

    def _end(self, error: StageError, cause: BaseException) -> NoReturn:
        error.__cause__ = cause
        self.fail(error)

    def _problem(self, name: str, plugin: Any, value: Any) -> str:
        """Return what is wrong with what a callback returned: TensorRT does not check it, or says nothing of it."""
        trt = self.trt
        expected: dict[str, type | tuple[type, ...]] = {
            "create_plugin": trt.IPluginV3,
            "clone": trt.IPluginV3,
            "attach_to_context": trt.IPluginV3,
            "get_capability_interface": trt.IPluginCapability,
            "get_fields_to_serialize": trt.PluginFieldCollection,
            "supports_format_combination": int,  # bool is one
            "get_workspace_size": int,
        }
        if name in expected and not isinstance(value, expected[name]):
            kinds = expected[name]
            assert isinstance(kinds, type)
            return f"returned {_described(value)} instead of {with_article(kinds.__name__)}"
        lists = {
            "get_output_data_types": trt.DataType,
            "get_output_shapes": trt.DimsExprs,
            "get_valid_tactics": int,
        }
        if name not in lists:
            return ""
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(item, lists[name]) for item in value
        ):
            return f"returned {_described(value)} instead of a list of {lists[name].__name__}"
        if name != "get_valid_tactics" and len(value) != plugin.num_outputs:
            return f"returned {len(value)} of {plugin.num_outputs} outputs"
        return ""


def _is_python(method: Any) -> bool:
    """Tell whether a class defines a method itself; what it has from the bindings is compiled."""
    return isroutine(method) and hasattr(method, "__code__")


def _described(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (list, tuple)):
        kinds = dict.fromkeys(type(item).__name__ for item in value)
        return f"a {type(value).__name__} of {', '.join(kinds) or 'nothing'}"
    return with_article(type(value).__name__)
