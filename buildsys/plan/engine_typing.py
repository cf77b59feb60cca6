"""Typing and quantization of TensorRT engines.

Both are decided before planning because they decide which graph an engine is built from. A weakly
typed builder reads the float32 graph and picks the type of each layer among those that its flags
allow. A strongly typed builder uses the types in the graph. Quantization is implicit if the builder
calibrates int8 itself, as weakly typed builders do, and explicit if the graph contains quantizers.
A weakly typed engine needs ``quantization: explicit`` for the latter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from buildsys.manifest.backend_choices import base_precision, is_auto
from buildsys.plan.action import ToolchainRef

EngineSpec = Mapping[str, Any]
# the TensorRT version of a toolchain, or of our own interpreter for None
VersionOf = Callable[[ToolchainRef | None], str]
_FIRST_STRONG_ONLY = 11  # major version
_ONLY_IN_TYPES = ("fp8",)  # precisions without a usable builder flag
_CALIBRATED = "int8"  # the only precision for which builders calibrate


def unknown_version(toolchain: ToolchainRef | None) -> str:  # noqa: ARG001 (same for all)
    """Know no version, which is planned like TensorRT 10."""
    return ""


def toolchain_of(spec: Mapping[str, Any], engine: EngineSpec) -> ToolchainRef | None:
    """Look up the toolchain of an engine, None for our own interpreter."""
    name = engine["toolchain"]
    if not name:
        return None
    toolchain = spec["toolchains"][name]
    return ToolchainRef(name, toolchain["python"], tuple(sorted(toolchain["env"].items())))


def with_base_precision(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Split ``auto`` from the precision that it completes, as a field of its own.

    Its engines have quantizers in the graph, as a search cannot foresee a builder's own ranges.
    Few nodes in the precision are a result of the search, not a failure of the builder.
    """
    if not any(map(is_auto, spec["engines"])):
        return spec
    engines = []
    for engine in spec["engines"]:
        if is_auto(engine):
            engine = {**engine, "precision": base_precision(engine), "auto": True}
            if engine["precision"] == _CALIBRATED and "quantization" in engine:
                engine["quantization"] = "explicit"
            if "precision_share" in engine:
                engine["precision_share"] = 0.0
        engines.append(engine)
    return {**spec, "engines": engines}


def with_typing(spec: Mapping[str, Any], version_of: VersionOf) -> Mapping[str, Any]:
    """Decide the typing of each TensorRT engine.

    ``quantization`` stays only if it differs from the default of typing and precision, so that
    writing the default out changes no key.
    """
    if not any("typing" in engine for engine in spec["engines"]):
        return spec
    engines = []
    for engine in spec["engines"]:
        if "typing" in engine:
            typing = engine["typing"]
            if typing == "auto":
                major = re.match(r"\d+", version_of(toolchain_of(spec, engine)))
                strong_only = major is not None and int(major[0]) >= _FIRST_STRONG_ONLY
                strong = strong_only or engine["precision"] in _ONLY_IN_TYPES
                typing = "strong" if strong else "weak"
            engine = {**engine, "typing": typing}
            bare = {field: value for field, value in engine.items() if field != "quantization"}
            default = "implicit" if is_implicit(bare) else None if is_weak(bare) else "explicit"
            if engine["quantization"] in ("auto", default):
                engine = bare
        engines.append(engine)
    return {**spec, "engines": engines}


def is_weak(engine: EngineSpec) -> bool:
    """Check if the builder picks the types (typing decided)."""
    return engine.get("typing") == "weak"


def is_implicit(engine: EngineSpec) -> bool:
    """Check if the builder itself calibrates int8 (typing decided)."""
    default = "implicit" if engine["precision"] == _CALIBRATED else None
    return is_weak(engine) and engine.get("quantization", default) == "implicit"
