"""Checks of gates: figures, limits and baselines."""

from __future__ import annotations

from typing import Any

from buildsys.manifest.problem import Problems, suggest
from buildsys.manifest.schema.engines import METRICS
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView


def problems(view: ManifestView) -> Problems:
    """Yield gates without limits, and impossible baselines."""
    engines = view.maps("engines", ...)
    for path, gates in (*view.maps("gates"), *view.maps("engines", ..., "gates")):
        metrics = [name for name in METRICS if gates.get(name) is not None]
        if not metrics and view.is_known(*path):
            text = "no gate: nothing is limited"
            yield view.problem(path, text, "add one, such as latency: {tolerance: 5%}", of_key=True)
        for name in metrics:
            limits = gates[name]
            if isinstance(limits, dict) and not any(v is not None for v in limits.values()):
                hint = "add a tolerance such as 5%, or a limit"
                yield view.problem((*path, name), "the gate limits nothing", hint, of_key=True)
        if isinstance(gates.get("engine"), str):
            own = [engine for at, engine in engines if path[: len(at)] == at]
            yield from _other_engine(view, path, gates["engine"], own, [e for _, e in engines])


def _other_engine(
    view: ManifestView,
    path: FieldPath,
    name: str,
    own: list[dict[str, Any]],
    engines: list[dict[str, Any]],
) -> Problems:
    named = {engine.get("name"): engine for engine in engines}
    other, at = named.get(name), (*path, "engine")
    if other is None:
        if view.is_known("engines"):
            names = [other for other in named if isinstance(other, str)]
            hint = suggest(name, names, what="engines")
            yield view.problem(at, f'there is no engine "{name}" in this model', hint)
        return
    for engine in own or [e for e in engines if e is not other and not e.get("gates")]:
        if engine is other:
            text = f'the engine "{name}" is its own baseline'
            yield view.problem(at, text, "name another engine, or remove it")
        elif any(engine.get(f) != other.get(f) for f in ("backend", "toolchain")):
            text = f'"{engine.get("name")}" and "{name}" differ in backend or toolchain'
            yield view.problem(at, text, "only engines of one backend and toolchain are compared")
