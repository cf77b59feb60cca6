"""Typing and quantization of TensorRT engines: decided before planning, as they decide what engines are built from.

A weakly typed builder takes the float32 graph and chooses the type of each layer among those that flags allow; a
strongly typed one takes the types that the graph has. Quantization is implicit where the builder measures ranges for
int8 itself, as weakly typed ones do, and explicit where the graph has quantizers, for which a weakly typed engine has
to ask.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from buildsys.plan.action import ToolchainRef

Engine = Mapping[str, Any]
# the version of the TensorRT that builds engines of a toolchain, None for our own interpreter
VersionOf = Callable[[ToolchainRef | None], str]
_STRONG_ONLY = 11  # from this major version on, builders know no other typing
_ONLY_IN_TYPES = ("fp8",)  # precisions that no flag of a usable builder asks for
_CALIBRATED = "int8"  # the precision for which builders measure ranges


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
    """Return a resolved manifest whose TensorRT engines say ``weak`` or ``strong`` instead of ``auto``.

    They have a field ``quantization`` only where it is not what typing and precision mean anyway, so that it is in no
    other key.
    """
    if not any("typing" in engine for engine in spec["engines"]):
        return spec

    def decided(engine: Engine) -> Engine:
        if "typing" not in engine:
            return engine
        automatic = engine["typing"] == "auto"
        typing = (
            _typing(engine, version_of(toolchain_of(spec, engine)))
            if automatic
            else engine["typing"]
        )
        return _without_usual_quantization({**engine, "typing": typing})

    return {**spec, "engines": [decided(engine) for engine in spec["engines"]]}


def is_weak(engine: Engine) -> bool:
    """Tell whether the builder chooses the types of an engine, its typing decided."""
    return engine.get("typing") == "weak"


def is_explicit(engine: Engine) -> bool:
    """Tell whether a weakly typed engine is built from a graph with quantizers all the same."""
    return is_weak(engine) and engine.get("quantization") == "explicit"


def is_implicit(engine: Engine) -> bool:
    """Tell whether the builder of an engine, its typing decided, measures ranges for int8 itself."""
    unasked = "implicit" if engine["precision"] == _CALIBRATED else None
    return is_weak(engine) and engine.get("quantization", unasked) == "implicit"


def _without_usual_quantization(engine: Engine) -> Engine:
    without = {field: value for field, value in engine.items() if field != "quantization"}
    usual = "implicit" if is_implicit(without) else None if is_weak(engine) else "explicit"
    return without if engine["quantization"] in ("auto", usual) else engine


def _typing(engine: Engine, version: str) -> str:
    major = re.match(r"\d+", version)
    only_strong = major is not None and int(major[0]) >= _STRONG_ONLY
    return "strong" if only_strong or engine["precision"] in _ONLY_IN_TYPES else "weak"
