"""Layer precisions of a finished engine, from TensorRT's engine inspector.

A layer counts by the narrowest type of its inputs, outputs and weights, in words that differ
between versions (``Row major linear FP32``, ``Half``). Layers that compute nothing, or only shapes,
do not count. Neither do parts compiled as a whole (Myelin) if only wider types than requested are
visible at their ends: the one of an int8 swin_t takes 97 % of its time and has float16 at its ends.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from buildsys.backends.layer_figures import DTYPE_OF_PRECISION, shares, slowest

_WORDS = {
    "float32": ("fp32", "float", "float32", "tf32"),
    "float16": ("fp16", "half", "float16"),
    "bfloat16": ("bf16", "bfloat16"),
    "int8": ("int8",),
    "float8e4m3fn": ("fp8", "float8", "e4m3"),
    "float4e2m1": ("fp4", "float4", "e2m1"),
    "int4": ("int4",),
}
_DTYPE_OF = {word: dtype for dtype, words in _WORDS.items() for word in words}
_NARROWEST_FIRST = ("float4e2m1", "int4", "float8e4m3fn", "int8", "bfloat16", "float16", "float32")
_RANK = _NARROWEST_FIRST.index
_TYPE = re.compile(
    rf"(?<![A-Za-z0-9])({'|'.join(sorted(_DTYPE_OF, key=len, reverse=True))})(?![A-Za-z0-9])", re.I
)
_COMPUTES_NOTHING = re.compile(
    r"reformat|noop|no_?op|constant|shape|signal|wait|assert|copy|host|device", re.I
)
_MOST_OF_THE_TIME = 0.5
_MOST_NODES = 50  # shown of a slow layer
_NODE = re.compile(r"\[ONNX Layer: ([^\x1e]*)\]")  # in a layer's metadata
_POINTWISE = re.compile(r"PWN\(|\)(?=,|\)|$)")  # around fused element-wise nodes
_NAMELESS = ("Reformatting CopyNode", "(Unnamed Layer", "{ForeignNode[")  # belong to no single node


class EngineLayer(NamedTuple):
    """One layer of an engine; ``dtype`` is None if unknown or ignored."""

    name: str
    kind: str
    dtype: str | None
    is_fused: bool = False  # a whole part of the network
    nodes: tuple[str, ...] = ()  # names in the ONNX graph

    def figures(self, timed: Mapping[str, float], most_nodes: int | None = None) -> dict[str, Any]:
        """Return the entry of a result file."""
        return {
            "name": self.name,
            "kind": self.kind,
            "precision": self.dtype,
            **timed,
            "nodes": list(self.nodes[:most_nodes]),
        }


def read_layers(text: str, precision: str) -> list[EngineLayer]:
    """Read the layers in an inspector's JSON; [] if it is invalid.

    ``precision`` is the requested one. With a profiling verbosity below detailed, a layer is just
    its name.
    """
    try:
        answer = json.loads(text, strict=False) if text else {}  # metadata has control characters
    except ValueError:
        return []
    entries = answer.get("Layers", []) if isinstance(answer, dict) else []
    return [_read_layer(entry, DTYPE_OF_PRECISION[precision]) for entry in entries]


def layer_shares(layers: list[EngineLayer]) -> dict[str, float]:
    """Collect the share of layers per type."""
    counts = Counter(part.dtype for part in layers if part.dtype)
    return {dtype: round(share, 4) for dtype, share in shares(counts).items()}


def precision_facts(
    layers: list[EngineLayer], times_ms: Mapping[str, float], precision: str
) -> dict[str, Any]:
    """Collect the layers by kind, and shares per type or a warning.

    Of the time, ``other`` has copies and shapes, ``unknown`` parts compiled as a whole without a
    known type.
    """
    by_name = {part.name: part for part in layers}
    facts: dict[str, Any] = {
        "engine_layers": dict(sorted(Counter(part.kind for part in layers).items()))
    }
    by_layer, by_time = layer_shares(layers), defaultdict[str, float](float)
    for name, time_ms in times_ms.items():
        part = by_name.setdefault(name, EngineLayer(name, "layer", None))
        by_time[part.dtype or ("unknown" if part.is_fused else "other")] += time_ms
    of_time = {dtype: round(share, 4) for dtype, share in shares(by_time).items()}
    if by_layer:  # unknown below detailed profiling_verbosity
        timed = {"time": of_time} if of_time else {}
        facts |= {"precision_shares": {"layers": by_layer, **timed}, "precision_of": "engine"}
    if times_ms:
        facts["slowest_layers"] = [
            by_name[name].figures(figures, _MOST_NODES) for name, figures in slowest(times_ms)
        ]
    if any(part.nodes for part in layers):
        timed_layers = dict(slowest(times_ms, most=None))
        facts["layer_nodes"] = [part.figures(timed_layers.get(part.name, {})) for part in layers]
    unknown = of_time.get("unknown", 0.0) if by_layer else 1.0
    if layers and unknown > _MOST_OF_THE_TIME:
        facts["precision_unknown"] = (
            f"{100 * unknown:.0f} % of the engine is in parts of unknown types, so the share of"
            f" {precision} is unknown: TensorRT reports no types inside parts compiled as a whole,"
            " nor below detailed profiling_verbosity"
        )
        if precision != "fp32":  # a builder keeps fp32 unless it may use less
            facts["warnings"] = [facts["precision_unknown"]]
    return facts


def _nodes_of(name: str, metadata: str) -> tuple[str, ...]:
    """Return the nodes of a layer from its metadata, else from a name such as ``A + B``."""
    if names := _NODE.findall(metadata):
        return tuple(dict.fromkeys(names))
    if name.startswith("Reformatting CopyNode"):
        return ()
    parts = re.split(r" \+ |, ", _POINTWISE.sub("", name) if "PWN(" in name else name)
    return tuple(part for part in parts if part and not part.startswith(_NAMELESS))


def _read_layer(entry: Any, requested: str) -> EngineLayer:
    if not isinstance(entry, dict):
        return EngineLayer(str(entry), "layer", None, nodes=_nodes_of(str(entry), ""))
    kind = str(entry.get("LayerType", "layer"))
    name = str(entry.get("Name", ""))
    nodes = _nodes_of(name, str(entry.get("Metadata", "")))
    if _COMPUTES_NOTHING.search(kind) or _COMPUTES_NOTHING.search(str(entry.get("Origin", ""))):
        return EngineLayer(name, kind, None, nodes=nodes)
    ports = [port for side in ("Inputs", "Outputs") for port in entry.get(side) or ()]
    formats = [port.get("Format/Datatype", "") for port in ports if isinstance(port, dict)]
    words = [match[1] for text in formats for match in _TYPE.finditer(str(text))]
    weights = entry.get("Weights")
    match = _TYPE.fullmatch(str(weights.get("Type", ""))) if isinstance(weights, dict) else None
    words += [match[1]] if match else []
    dtype = min((_DTYPE_OF[word.lower()] for word in words), key=_RANK, default=None)
    is_fused = kind == "Myelin" or "ForeignNode[" in name
    if is_fused and dtype and (dtype == "float32" or _RANK(dtype) > _RANK(requested)):
        dtype = None  # the type at its ends says nothing about its inside
    return EngineLayer(name, kind, dtype, is_fused, nodes)
