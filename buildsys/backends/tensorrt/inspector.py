"""What TensorRT's engine inspector says of a finished engine: the precision of its layers.

The inspector names the type of each tensor that a layer reads and writes, in words that differ between versions:
``Row major linear FP32``, ``Thirty-two wide channel vectorized row major Int8 format``, ``Half``. Where shapes are
dynamic, TensorRT 8.6 knows them only for a context whose shapes are set; the type of a layer's weights it always tells.
A layer counts by the narrowest type among all these. Layers that compute nothing, or only shapes, do not count, nor do
parts that TensorRT compiles as a whole (Myelin) where all that is seen of them is a wider type at their ends than was
asked for: that of an int8 swin_t is 97 % of its time, has float16 at its ends, and weights of half the bytes inside.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
_TYPE = re.compile(
    rf"(?<![A-Za-z0-9])({'|'.join(sorted(_DTYPE_OF, key=len, reverse=True))})(?![A-Za-z0-9])", re.I
)
_COMPUTES_NOTHING = re.compile(
    r"reformat|noop|no_?op|constant|shape|signal|wait|assert|copy|host|device", re.I
)
_MOST_OF_THE_TIME = 0.5
_WHY = "TensorRT tells nothing of what it compiles as a whole, nor of anything below detailed profiling_verbosity"
DTYPE_OF_PRECISION = {
    "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "float8e4m3fn",
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """One layer of an engine; ``dtype`` is None where the inspector does not tell, or it does not count."""

    name: str
    kind: str
    dtype: str | None
    is_fused: bool = False  # a whole part of the network


def read_layers(text: str, precision: str) -> list[Layer]:
    """Return the layers in the JSON of an engine inspector; [] where it is none.

    ``precision`` is what the engine was asked for. With a profiling verbosity below detailed, a layer is just its name.
    """
    try:
        found = json.loads(text, strict=False) if text else {}  # metadata has control characters
    except ValueError:
        return []
    entries = found.get("Layers", []) if isinstance(found, dict) else []
    return [_layer(entry, DTYPE_OF_PRECISION[precision]) for entry in entries]


def layer_kinds(layers: list[Layer]) -> dict[str, int]:
    """Return how many layers of each kind there are."""
    return dict(sorted(Counter(each.kind for each in layers).items()))


def layer_shares(layers: list[Layer]) -> dict[str, float]:
    """Return the share of layers of each type among those that count; {} where none does."""
    return _shares((each.dtype, 1.0) for each in layers if each.dtype)


def time_shares(layers: list[Layer], times_ms: Mapping[str, float]) -> dict[str, float]:
    """Return the share of the time that layers of each type take.

    ``other`` has copies and shapes, ``unknown`` parts compiled as a whole that do not tell their type.
    """
    known = {each.name: each.dtype or ("unknown" if each.is_fused else "other") for each in layers}
    return _shares((known.get(name, "other"), time) for name, time in times_ms.items())


def precision_facts(
    layers: list[Layer], times_ms: Mapping[str, float], precision: str
) -> dict[str, Any]:
    """Return the shares of each type as ``engine.json`` has them, and what is not known of them, with a warning."""
    shares = layer_shares(layers)
    timed = time_shares(layers, times_ms) if shares else {}
    facts: dict[str, Any] = {}
    if shares:  # nothing where the engine keeps less than detailed descriptions of its layers
        facts["precision_shares"] = {"layers": shares, **({"time": timed} if timed else {})}
        facts["precision_of"] = "engine"
    if layers and (not shares or timed.get("unknown", 0.0) > _MOST_OF_THE_TIME):
        much = f"{timed['unknown']:.0%} of the engine's time" if shares else "all of the engine"
        text = f"{much} is in parts that do not tell their types, so how much of it is in {precision} is not known: {_WHY}"
        facts["precision_unknown"] = text
        if precision != "fp32":  # of which a builder takes nothing away unless it may
            facts["warnings"] = [text]
    return facts


def shortfall(precision: str, shares: Mapping[str, float], least: float) -> str:
    """Return what is wrong with an engine's precision in one sentence, "" where it is as asked.

    An fp32 engine is always as asked: a graph may have layers of other types.
    """
    wanted = DTYPE_OF_PRECISION[precision]
    if wanted == "float32" or not shares:
        return ""
    share = shares.get(wanted, 0.0)
    if share > 0 and share >= least:
        return ""
    rest = ", ".join(
        f"{other:.0%} in {dtype}"
        for dtype, other in sorted(shares.items(), key=lambda item: -item[1])
    )
    has = f"only {share:.1%} of its layers are" if share else "none of its layers is"
    limit = f" (at least {least:.0%} are wanted)" if least else ""
    return f"the engine was asked for {precision} and {has} in {wanted}{limit}: {rest}"


def _layer(entry: Any, wanted: str) -> Layer:
    if not isinstance(entry, dict):
        return Layer(str(entry), "layer", None)
    kind = str(entry.get("LayerType", "layer"))
    name = str(entry.get("Name", ""))
    if _COMPUTES_NOTHING.search(kind) or _COMPUTES_NOTHING.search(str(entry.get("Origin", ""))):
        return Layer(name, kind, None)
    dtypes = set(_dtypes(entry))
    found = next((dtype for dtype in _NARROWEST_FIRST if dtype in dtypes), None)
    is_fused = kind == "Myelin" or "ForeignNode[" in name
    return Layer(name, kind, None if is_fused and not _tells(found, wanted) else found, is_fused)


def _tells(dtype: str | None, wanted: str) -> bool:
    """Tell whether a type at the ends of a whole part says that it has the precision that was asked for."""
    rank = _NARROWEST_FIRST.index
    return dtype is not None and dtype != "float32" and rank(dtype) <= rank(wanted)


def _dtypes(entry: Mapping[str, Any]) -> Iterator[str]:
    for side in ("Inputs", "Outputs"):
        for port in entry.get(side) or ():
            described = port.get("Format/Datatype", "") if isinstance(port, dict) else ""
            for found in _TYPE.finditer(str(described)):
                yield _DTYPE_OF[found[1].lower()]
    weights = entry.get("Weights")
    match = _TYPE.fullmatch(str(weights.get("Type", ""))) if isinstance(weights, dict) else None
    if match:
        yield _DTYPE_OF[match[1].lower()]


def _shares(amounts: Iterator[tuple[str, float]]) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for name, amount in amounts:
        sums[name] += amount  # type: ignore[assignment]  # a Counter adds floats as well
    total = sum(sums.values())
    return (
        {name: round(amount / total, 4) for name, amount in sorted(sums.items())} if total else {}
    )
