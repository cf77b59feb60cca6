"""Precisions of engines, also those that a search completes (``auto``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.system.backend_registry import describe_backend

AUTO = "auto"
_PREFIX = f"{AUTO}-"


def is_auto(engine: Mapping[str, Any]) -> bool:
    """Return True if a search finds the nodes that an engine keeps in fp32."""
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
