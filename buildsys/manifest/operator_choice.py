"""Choice of the implementation of a custom operator for each backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BACKEND_KINDS = {
    "onnxruntime": ("function", "library"),
    "tensorrt": ("function", "plugin"),
    "tensorrt_rtx": ("function", "plugin"),
}


def implementations(entry: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """Return a backend's implementations of an operator, preferred kind first."""
    function, other = BACKEND_KINDS[backend]
    named = entry.get("function")
    if isinstance(named, Mapping):
        named = named.get(backend)
    given = {function: named, other: entry.get(other)}
    return {kind: value for kind, value in given.items() if value is not None}


def chosen_kind(entry: Mapping[str, Any], backend: str) -> str | None:
    """Return the kind chosen by ``use``, else the first one given."""
    chosen: str | None = (entry.get("use") or {}).get(backend)
    return chosen or next(iter(implementations(entry, backend)), None)
