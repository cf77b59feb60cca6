"""Layers of a compiled model: executed types and times."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import openvino as ov

from buildsys.backends.interface import Figures, shares, slowest
from buildsys.backends.openvino.session import DTYPES

# they compute nothing, or only shapes
_COMPUTES_NOTHING = frozenset((
    "Input", "Output", "Parameter", "Result", "Constant", "Const", "Reorder", "Reshape", "Convert",
    "ShapeOf", "Shapeof", "MemoryInput", "MemoryOutput", "Broadcast", "Squeeze", "Unsqueeze",
))  # fmt: skip
_INT8 = ("int8", "uint8")
_MOST_NODES = 50


def precision_facts(compiled: ov.CompiledModel) -> Figures:
    """Return the executed layers by kind, and the share of each type."""
    layers = list(executed_layers(compiled))
    kinds = Counter(kind for _, kind, _, _ in layers)
    types = Counter(dtype for _, kind, dtype, _ in layers if kind not in _COMPUTES_NOTHING)
    facts: Figures = {"engine_layers": dict(sorted(kinds.items()))}
    if types:
        by_layer = {name: round(share, 4) for name, share in shares(types).items()}
        facts |= {"precision_shares": {"layers": by_layer}, "precision_of": "engine"}
    return facts


def layers_by_time(
    compiled: ov.CompiledModel, times_ms: Mapping[str, list[float]]
) -> list[Figures]:
    """Return the slowest layers of a model compiled with PERF_COUNT, the slowest first."""
    known = {name: (kind, dtype, nodes) for name, kind, dtype, nodes in executed_layers(compiled)}
    medians = {name: statistics.median(found) for name, found in times_ms.items()}
    found: list[Figures] = []
    for name, timed in slowest(medians):
        kind, dtype, nodes = known.get(name, ("layer", None, []))
        found.append({
            "name": name, "kind": kind, "precision": dtype, **timed, "nodes": nodes[:_MOST_NODES],
        })  # fmt: skip
    return found


def executed_layers(compiled: ov.CompiledModel) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield name, kind, type and ONNX nodes of each executed layer."""
    for op in compiled.get_runtime_model().get_ordered_ops():
        facts: dict[str, Any] = {key: str(value.value) for key, value in op.get_rt_info().items()}
        dtype = facts.get("runtimePrecision", "")
        dtype = DTYPES.get(dtype, dtype) or "unknown"
        names = [name for name in facts.get("originalLayersNames", "").split(",") if name]
        nodes = [name for name in names if not name.startswith(("Constant_", "Convert_"))]
        kind = facts.get("layerType", op.get_type_name())
        # u8 activations with i8 weights
        yield op.get_friendly_name(), kind, "int8" if dtype in _INT8 else dtype, nodes
