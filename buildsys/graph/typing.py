"""Weak or strong typing of TensorRT engines: decided before planning, since it decides which graph they are built from.

A weakly typed builder takes the float32 graph and chooses the type of each layer among those that flags allow; a
strongly typed one takes the types that the graph has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from buildsys.graph.action import ToolchainRef

Engine = Mapping[str, Any]
# the version of the TensorRT that builds engines of a toolchain, None for our own interpreter
VersionOf = Callable[[ToolchainRef | None], str]
_STRONG_ONLY = 11  # from this major version on, builders know no other typing
_ONLY_IN_TYPES = ("fp8",)  # precisions that no flag of a usable builder asks for


def unknown_version(toolchain: ToolchainRef | None) -> str:  # noqa: ARG001 (whichever it is)
    """Return the version where none is known: engines are then planned as for TensorRT 10."""
    return ""


def toolchain_of(spec: Mapping[str, Any], engine: Engine) -> ToolchainRef | None:
    """Return the toolchain that an engine of a resolved manifest names."""
    name = engine["toolchain"]
    if not name:
        return None
    written = spec["toolchains"][name]
    return ToolchainRef(name, written["python"], tuple(sorted(written["env"].items())))


def with_typing(spec: Mapping[str, Any], version_of: VersionOf) -> Mapping[str, Any]:
    """Return a resolved manifest whose TensorRT engines say ``weak`` or ``strong`` instead of ``auto``."""
    if not any(engine.get("typing") == "auto" for engine in spec["engines"]):
        return spec

    def decided(engine: Engine) -> Engine:
        if engine.get("typing") != "auto":
            return engine
        return {**engine, "typing": _typing(engine, version_of(toolchain_of(spec, engine)))}

    return {**spec, "engines": [decided(engine) for engine in spec["engines"]]}


def is_weak(engine: Engine) -> bool:
    """Tell whether an engine, its typing decided, is built from the float32 graph with flags."""
    return engine.get("typing") == "weak"


def _typing(engine: Engine, version: str) -> str:
    major = re.match(r"\d+", version)
    only_strong = major is not None and int(major[0]) >= _STRONG_ONLY
    return "strong" if only_strong or engine["precision"] in _ONLY_IN_TYPES else "weak"
