"""What a manifest leaves to the backend: the precision of ``auto``, and operators' kinds."""

from collections.abc import Mapping
from typing import Any

from buildsys.system.backend_registry import describe_backend

AUTO = "auto"
QUANTIZED = ("int8", "fp8")  # precisions that need calibration
_PREFIX = f"{AUTO}-"


def is_auto(engine: Mapping[str, Any]) -> bool:
    """Check whether a search chooses the nodes that an engine keeps in fp32."""
    precision = str(engine.get("precision"))
    return precision == AUTO or precision.startswith(_PREFIX)


def base_precision(engine: Mapping[str, Any]) -> str:
    """Return the precision of the nodes that are not kept in fp32.

    ``auto`` alone is the backend's first choice: the same on every machine, as a manifest must not
    mean other engines elsewhere.
    """
    precision = str(engine.get("precision", "fp32"))
    if precision != AUTO:
        return precision.removeprefix(_PREFIX)
    choices = describe_backend(str(engine["backend"])).auto_precisions(engine)
    return choices[0] if choices else "fp32"


def full_name(engine: Mapping[str, Any]) -> str:
    """Return ``auto-fp16`` for ``auto`` of an fp16 engine."""
    base = base_precision(engine)
    return f"{_PREFIX}{base}" if is_auto(engine) else base


def has_quantizers(spec: Mapping[str, Any]) -> bool:
    """Check if the manifest says that the network has its own quantizers."""
    return bool(spec.get("quantize", {}).get("tool") == "source")


def implementations(operator: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """Select a backend's implementations of a custom operator, preferred kind first."""
    values = {kind: operator.get(kind) for kind in describe_backend(backend).operator_kinds}
    if isinstance(function := values.get("function"), Mapping):
        values["function"] = function.get(backend)
    return {kind: value for kind, value in values.items() if value is not None}


def chosen_kind(operator: Mapping[str, Any], backend: str) -> str | None:
    """Return the kind chosen by ``use``, else the first one that has an implementation."""
    chosen: str | None = (operator.get("use") or {}).get(backend)
    return chosen or next(iter(implementations(operator, backend)), None)


def int8_layers(engine: Mapping[str, Any]) -> list[int]:
    """List the indexes of an engine's int8 layer precisions."""
    layers = engine.get("layer_precisions") or ()
    return [index for index, layer in enumerate(layers) if layer["precision"] == "int8"]
