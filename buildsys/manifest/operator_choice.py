"""Choice of the implementation of a custom operator for each backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.system.backend_registry import describe_backend


def implementations(entry: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """Return a backend's implementations of an operator, preferred kind first."""
    function, *others = describe_backend(backend).operator_kinds
    named = entry.get("function")
    if isinstance(named, Mapping):
        named = named.get(backend)
    given = {function: named, **{other: entry.get(other) for other in others}}
    return {kind: value for kind, value in given.items() if value is not None}


def chosen_kind(entry: Mapping[str, Any], backend: str) -> str | None:
    """Return the kind chosen by ``use``, else the first one given."""
    chosen: str | None = (entry.get("use") or {}).get(backend)
    return chosen or next(iter(implementations(entry, backend)), None)
