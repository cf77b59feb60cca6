"""Where in the chain surgery changes what: the inputs, the shape cases and the golden files of each point.

A point is a graph that later stages read: ``EXPORTED`` as the exporter wrote it, then after the steps of each
``when``. Without steps all points are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from buildsys.manifest.shape_cases import Dims, case_values, distinct_cases, representatives
from buildsys.manifest.surgery_interface import (
    AFTER_EXPORT,
    AFTER_SIMPLIFY,
    WHENS,
    Inputs,
    Step,
    exported_interface,
    fixed_dims,
    interface_after,
    kind_of,
    names_in_shapes,
    steps_of,
)
from buildsys.plan.profile_cases import name_of, profile_cases, profiles_of

__all__ = ["AFTER_EXPORT", "AFTER_SIMPLIFY", "EXPORTED", "WHENS", "steps_of"]
EXPORTED = ""
_POINTS = (EXPORTED, *WHENS)
_ALL = ("min", "opt", "max", "odd")
_NEW_CASES = ("rename", "free_dims", "cut", "cast")
Resolved = Mapping[str, Any]


def inputs_at(spec: Resolved, point: str) -> Inputs:
    """Return the shapes and dtypes of the graph's inputs at a point."""
    passed = [step for when in _passed(point) for step in steps_of(spec, when)]
    return interface_after(exported_interface(spec), passed).inputs


def dims_at(spec: Resolved, point: str) -> dict[str, Any]:
    """Return the ranges of the dimensions that are dynamic at a point."""
    if not spec.get("surgery"):
        return dict(spec["dims"])
    used = names_in_shapes(inputs_at(spec, point))
    return {name: span for name, span in spec["dims"].items() if name in used}


def cases_at(spec: Resolved, point: str, wanted: Iterable[str] = _ALL) -> dict[str, Dims]:
    """Return the shape cases at a point; a dimension that surgery fixes has its one value everywhere."""
    return distinct_cases(_values_at(spec, point), wanted)


def golden_cases_at(spec: Resolved, point: str) -> dict[str, Dims]:
    """Return all shape cases that there are golden tensors for: those of ``dims``, and those of explicit profiles."""
    every = _values_at(spec, point)
    return distinct_cases(every, every)


def engine_cases(spec: Resolved, engine: Mapping[str, Any]) -> dict[str, Dims]:
    """Return the shape cases that an engine is checked in: those of ``dims``, and those of its own profiles."""
    every, own = _values_at(spec, AFTER_SIMPLIFY), list(_profile_values(spec, [engine]).values())
    wanted = [
        case for case, values in every.items() if case in spec["verify"]["cases"] or values in own
    ]
    return distinct_cases(every, wanted)


def origin_of(spec: Resolved, case: str, earlier: str) -> str:
    """Return the case at an ``earlier`` point that a later case comes from: all are named after the same four."""
    return representatives(_values_at(spec, earlier))[case]


def point_before(when: str) -> str:
    """Return the point that the steps of ``when`` start from."""
    return _POINTS[_POINTS.index(when) - 1]


def golden_point(spec: Resolved, point: str) -> str:
    """Return the last point up to ``point`` that has golden cases of its own."""
    changed = [when for when in _passed(point) if changes_golden(steps_of(spec, when))]
    return changed[-1] if changed else EXPORTED


def changes_golden(steps: Iterable[Step]) -> bool:
    """Tell whether golden cases differ after these steps, in names, shapes, types or values."""
    return any(
        kind_of(step) in _NEW_CASES
        or step.get("changes") == "numbers"
        or step.get("inputs") is not None
        or step.get("outputs") is not None
        for step in steps
    )


def frees_dims(spec: Resolved) -> bool:
    """Tell whether the final graph takes shapes that the network was never asked for."""
    return _has_step(spec, "free_dims")


def is_cut(spec: Resolved) -> bool:
    """Tell whether the final graph is only a part of the network."""
    return _has_step(spec, "cut")


def _has_step(spec: Resolved, kind: str) -> bool:
    return any(kind in step for when in WHENS for step in steps_of(spec, when))


def _passed(point: str) -> tuple[str, ...]:
    return _POINTS[1 : _POINTS.index(point) + 1]


def all_values(spec: Resolved) -> dict[str, Dims]:
    """Return the values of all dimensions in the four cases, and in those that only explicit profiles have."""
    fixed = {name: dict.fromkeys(_ALL, value) for name, value in fixed_dims(spec).items()}
    values = case_values({**spec["dims"], **fixed})
    further = _profile_values(spec, spec["engines"])
    if further:
        names = dims_at(spec, AFTER_SIMPLIFY).keys()
        known = [
            {name: value for name, value in case.items() if name in names}
            for case in values.values()
        ]
        values |= {
            case: {**values["opt"], **own} for case, own in further.items() if own not in known
        }
    return values


def _profile_values(spec: Resolved, engines: Iterable[Mapping[str, Any]]) -> dict[str, Dims]:
    """Return the cases of the engines' explicit profiles, of the dimensions that engines have."""
    profiles = profiles_of(engines)
    if not profiles:
        return {}
    inputs, points = inputs_at(spec, AFTER_SIMPLIFY), spec["verify"]["cases"]
    usual = case_values(dims_at(spec, AFTER_SIMPLIFY))[
        "opt"
    ]  # of a dimension that a profile says nothing of
    values = [profile_cases(profile, inputs, spec["dims"]) for profile in profiles]
    cases = [{**usual, **every[point]} for every in values for point in points]
    return {name_of(case): case for case in cases}


def _values_at(spec: Resolved, point: str) -> dict[str, Dims]:
    used = dims_at(spec, point)
    return {
        case: {name: value for name, value in values.items() if name in used}
        for case, values in all_values(spec).items()
    }
