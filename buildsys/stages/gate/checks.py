"""Checks of gates: figures, limits and baselines."""

from buildsys.manifest.problem import Problems, suggest
from buildsys.manifest.schema.engines import METRICS
from buildsys.manifest.view import ManifestView


def problems(view: ManifestView) -> Problems:
    """Yield gates without limits, and impossible baselines."""
    for path, gates in (*view.maps("gates"), *view.maps("engines", ..., "gates")):
        limits = {name: gates[name] for name in METRICS if gates.get(name) is not None}
        if not limits:
            text = "no gate: nothing is limited"
            yield view.problem(path, text, "add one, such as latency: 5%", of_key=True)
        for name, limit in limits.items():
            if name == "accuracy" and not view.get("evaluate"):
                text, hint = "the model has no evaluate", "add it, or remove the gate"
                yield view.problem((*path, name), text, hint, of_key=True)
            if isinstance(limit, dict) and all(value is None for value in limit.values()):
                hint = "add a tolerance such as 5%, or a limit"
                yield view.problem((*path, name), "the gate limits nothing", hint, of_key=True)
        named = {engine["name"]: engine for engine in view.list("engines")}
        baseline, place = gates.get("engine"), (*path, "engine")
        if baseline is not None and baseline not in named:
            text = f'there is no engine "{baseline}" in this model'
            yield view.problem(place, text, suggest(baseline, named))
        elif baseline and path[0] == "engines" and view.map(*path[:2]) == named[baseline]:
            text = f'the engine "{baseline}" is its own baseline'
            yield view.problem(place, text, "name another engine, or remove it")
