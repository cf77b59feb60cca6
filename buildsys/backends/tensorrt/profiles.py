"""Optimization profiles: the range of shapes of every input that an engine is built for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from buildsys.errors import StageError

Shape = tuple[int, ...]
# input name -> {"min": shape, "opt": shape, "max": shape}, and {"min_values": …} where its values decide shapes
Profile = dict[str, dict[str, Shape]]
_POINTS = ("min", "opt", "max")


def resolve_profiles(
    inputs: Mapping[str, Mapping[str, Any]],
    dims: Mapping[str, Mapping[str, Any]],
    explicit: Sequence[Mapping[str, Mapping[str, Any]]] | None,
) -> list[Profile]:
    """Return the profiles of an engine: the explicit ones, checked, or one from the ranges of ``dims``.

    Inputs without a dynamic dimension have no entry; a model without dynamic inputs has no profile.
    Raises: StageError: everything that is wrong with the explicit profiles.
    """
    dynamic = {
        name: tensor["shape"] for name, tensor in inputs.items() if _is_dynamic(tensor["shape"])
    }
    if explicit is None:
        return [_profile_of_dims(dynamic, dims)] if dynamic else []
    problems: list[str] = []
    profiles = []
    for number, given in enumerate(explicit):
        complete, found = _checked_profile(given, inputs)
        wanted = [name for name in inputs if name in dynamic or "values" in given.get(name, ())]
        profiles.append({name: complete[name] for name in wanted if name in complete})
        problems += [f"profile {number}: {problem}" for problem in found]
    if dynamic and not profiles:
        problems.append(f"there is no profile, but the shape of {_names(dynamic)} is dynamic")
    if problems:
        raise StageError(
            "; ".join(problems), "correct the engine's profiles, or leave them out: dims give one"
        )
    return profiles if any(profiles) else []


def _profile_of_dims(
    dynamic: Mapping[str, Sequence[Any]], dims: Mapping[str, Mapping[str, Any]]
) -> Profile:
    def shape_at(point: str, shape: Sequence[Any]) -> Shape:
        return tuple(dims[size][point] if isinstance(size, str) else size for size in shape)

    return {
        name: {point: shape_at(point, shape) for point in _POINTS}
        for name, shape in dynamic.items()
    }


def check_against_graph(
    profiles: Sequence[Profile],
    shapes: Mapping[str, Sequence[int]],
    deciding: AbstractSet[str] = frozenset(),
) -> None:
    """Check that profiles fit the inputs that a graph really has.

    ``shapes`` are the graph's, -1 for a dynamic size; the values of the inputs in ``deciding`` decide shapes.
    Raises: StageError: all that does not fit.
    """
    problems = []
    for number, profile in enumerate(profiles):
        problems += [f"profile {number}: {text}" for text in _misfits(profile, shapes)]
    dynamic = [name for name, shape in shapes.items() if -1 in shape]
    unranged = [
        name for name in dynamic if not profiles or any(name not in profile for profile in profiles)
    ]
    problems += [
        f"the graph's input {name} has dynamic sizes, and there is no range for it"
        for name in unranged
    ]
    if problems:
        hint = "give dims, or the engine's profiles, the sizes that the graph takes; or export it with other axes"
        raise StageError("; ".join(problems), hint)
    valueless = [
        name
        for name in sorted(deciding)
        if not profiles or any("min_values" not in p.get(name, ()) for p in profiles)
    ]
    if valueless:
        text = f"the values of the input {_names(valueless)} decide shapes inside the network, and no range is given"
        raise StageError(
            text, f"profiles: [{{{valueless[0]}: {{values: {{min: […], opt: […], max: […]}}}}}}]"
        )


def _misfits(spans: Profile, shapes: Mapping[str, Sequence[int]]) -> Iterator[str]:
    for name, ranges in spans.items():
        if name not in shapes:
            yield f"the graph has no input {name}, only {_names(list(shapes))}"
            continue
        if len(ranges["min"]) != len(shapes[name]):
            yield f"the graph's input {name} has {len(shapes[name])} dimensions, not {len(ranges['min'])}"
            continue
        for axis, size in enumerate(shapes[name]):
            low, high = ranges["min"][axis], ranges["max"][axis]
            if size >= 0 and not low == high == size:
                yield f"the graph fixes axis {axis} of {name} at {size}, and {low} to {high} is asked for"


def _profile_of_values(
    shape: Sequence[Any], values: Mapping[str, Sequence[int]]
) -> dict[str, Shape]:
    sizes = tuple(size for size in shape if isinstance(size, int))
    return {
        **dict.fromkeys(_POINTS, sizes),
        **{f"{point}_values": tuple(values[point]) for point in _POINTS},
    }


def _checked_profile(
    given: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, Mapping[str, Any]]
) -> tuple[Profile, list[str]]:
    problems = []
    profile: Profile = {}
    for name, ranges in given.items():
        if name not in inputs:
            problems.append(f"there is no input {name!r}, the inputs are {_names(inputs)}")
            continue
        if "values" in ranges:
            profile[name] = _profile_of_values(inputs[name]["shape"], ranges["values"])
            continue
        profile[name] = {point: tuple(ranges[point]) for point in _POINTS}
        problems += [
            f"{name}: {problem}"
            for problem in _range_problems(profile[name], inputs[name]["shape"])
        ]
    missing = [
        name
        for name, tensor in inputs.items()
        if _is_dynamic(tensor["shape"]) and name not in given
    ]
    if missing:
        problems.append(f"nothing for {_names(missing)}, whose shape is dynamic")
    return profile, problems


def _range_problems(ranges: Mapping[str, Shape], shape: Sequence[Any]) -> list[str]:
    wrong_rank = [
        f"{point} {list(ranges[point])}" for point in _POINTS if len(ranges[point]) != len(shape)
    ]
    if wrong_rank:
        return [
            f"{' and '.join(wrong_rank)} must have the {len(shape)} dimensions of {list(shape)}"
        ]
    problems = []
    for axis, size in enumerate(shape):
        low, usual, high = (ranges[point][axis] for point in _POINTS)
        if not low <= usual <= high:
            problems.append(
                f"axis {axis}: min {low}, opt {usual}, max {high} are not in ascending order"
            )
        elif not isinstance(size, str) and (low, high) != (size, size):
            problems.append(f"axis {axis} is always {size}, not {low} to {high}")
    return problems


def _is_dynamic(shape: Sequence[Any]) -> bool:
    return any(isinstance(size, str) for size in shape)


def _names(names: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(names)
