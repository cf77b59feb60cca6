"""Choice of the implementation of a custom operator for each backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.system.backend_registry import describe_backend


def implementations(entry: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """Return a backend's implementations of an operator, preferred kind first."""
    given = {}
    for kind in describe_backend(backend).operator_kinds:
        value = entry.get(kind)
        if kind == "function" and isinstance(value, Mapping):
            value = value.get(backend)
        if value is not None:
            given[kind] = value
    return given


def chosen_kind(entry: Mapping[str, Any], backend: str) -> str | None:
    """Return the kind chosen by ``use``, else the first one given."""
    chosen: str | None = (entry.get("use") or {}).get(backend)
    return chosen or next(iter(implementations(entry, backend)), None)
