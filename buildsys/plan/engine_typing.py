"""Typing and quantization of TensorRT engines.

Both are decided before planning because they decide which graph an engine is built from. A weakly
typed builder reads the float32 graph and picks the type of each layer among those that its flags
allow. A strongly typed builder uses the types in the graph. Quantization is implicit if the builder
calibrates int8 itself, as weakly typed builders do, and explicit if the graph contains quantizers.
A weakly typed engine needs ``quantization: explicit`` for the latter.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from buildsys.manifest.backend_choices import (
    QUANTIZED,
    base_precision,
    has_quantizers,
    is_auto,
)
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


def decide_engine(spec: Mapping[str, Any], engine: EngineSpec, version_of: VersionOf) -> EngineSpec:
    """Decide precision, typing and quantization of an engine.

    int8 engines of quantized networks are ``quantized``: they are built from the graph as it is.

    Engines with ``auto``, and those of networks defined by hand, have quantizers in the graph: a
    search cannot foresee a builder's own ranges. Few nodes in the precision are a result of the
    search, not a failure of the builder. ``quantization`` stays only if it differs from the default
    of typing and precision, so that writing the default out changes no key.
    """
    precision = base_precision(engine)
    decided = {**engine, "precision": precision}
    is_quantized = has_quantizers(spec) and precision == _CALIBRATED
    is_defined = "tensorrt" in (spec["source"] or {})
    quantized_in_graph: tuple[str, ...] = QUANTIZED if is_defined or is_quantized else ()
    if is_quantized:
        decided["quantized"] = True
    if is_auto(engine):
        quantized_in_graph = (_CALIBRATED,)
        decided["auto"] = True
        if "precision_share" in engine:
            decided["precision_share"] = 0.0
    if precision in quantized_in_graph and "quantization" in engine:
        decided["quantization"] = "explicit"
    if "typing" not in engine:
        return decided
    if engine["typing"] == "auto":
        major = re.match(r"\d+", version_of(toolchain_of(spec, engine)))
        strong_only = major is not None and int(major[0]) >= _FIRST_STRONG_ONLY
        strong = strong_only or precision in _ONLY_IN_TYPES
        decided["typing"] = "strong" if strong else "weak"
    bare = {field: value for field, value in decided.items() if field != "quantization"}
    default = "implicit" if is_implicit(bare) else None if is_weak(bare) else "explicit"
    return bare if decided["quantization"] in ("auto", default) else decided


def is_weak(engine: EngineSpec) -> bool:
    """Check if the builder picks the types (typing decided)."""
    return engine.get("typing") == "weak"


def is_implicit(engine: EngineSpec) -> bool:
    """Check if the builder itself calibrates int8 (typing decided)."""
    default = "implicit" if engine["precision"] == _CALIBRATED else None
    return is_weak(engine) and engine.get("quantization", default) == "implicit"
