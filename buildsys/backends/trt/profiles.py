"""Optimization profiles: the range of shapes of every input that an engine is built for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from buildsys.errors import StageError

Shape = tuple[int, ...]
Profile = dict[str, dict[str, Shape]]  # input name -> {"min": shape, "opt": shape, "max": shape}
_POINTS = ("min", "opt", "max")


def resolve_profiles(
    inputs: Mapping[str, Mapping[str, Any]],
    dims: Mapping[str, Mapping[str, Any]],
    explicit: Sequence[Mapping[str, Mapping[str, Sequence[int]]]] | None,
) -> list[Profile]:
    """Return the profiles of an engine: the explicit ones, checked, or one from the ranges of ``dims``.

    Inputs without a dynamic dimension have no entry; a model without dynamic inputs has no profile.
    Raises: StageError: everything that is wrong with the explicit profiles.
    """
    dynamic = {name: tensor["shape"] for name, tensor in inputs.items() if _is_dynamic(tensor["shape"])}
    if explicit is None:
        return [_profile_of_dims(dynamic, dims)] if dynamic else []
    problems: list[str] = []
    profiles = []
    for number, given in enumerate(explicit):
        complete, found = _checked_profile(given, inputs)
        profiles.append({name: complete[name] for name in dynamic if name in complete})
        problems += [f"profile {number}: {problem}" for problem in found]
    if dynamic and not profiles:
        problems.append(f"there is no profile, but the shape of {_names(dynamic)} is dynamic")
    if problems:
        raise StageError("; ".join(problems), "correct the engine's profiles, or leave them out: dims give one")
    return profiles if dynamic else []


def _profile_of_dims(dynamic: Mapping[str, Sequence[Any]], dims: Mapping[str, Mapping[str, Any]]) -> Profile:
    def shape_at(point: str, shape: Sequence[Any]) -> Shape:
        return tuple(dims[size][point] if isinstance(size, str) else size for size in shape)

    return {name: {point: shape_at(point, shape) for point in _POINTS} for name, shape in dynamic.items()}


def _checked_profile(
    given: Mapping[str, Mapping[str, Sequence[int]]], inputs: Mapping[str, Mapping[str, Any]]
) -> tuple[Profile, list[str]]:
    problems = []
    profile: Profile = {}
    for name, ranges in given.items():
        if name not in inputs:
            problems.append(f"there is no input {name!r}, the inputs are {_names(inputs)}")
            continue
        profile[name] = {point: tuple(ranges[point]) for point in _POINTS}
        problems += [f"{name}: {problem}" for problem in _range_problems(profile[name], inputs[name]["shape"])]
    missing = [name for name, tensor in inputs.items() if _is_dynamic(tensor["shape"]) and name not in given]
    if missing:
        problems.append(f"nothing for {_names(missing)}, whose shape is dynamic")
    return profile, problems


def _range_problems(ranges: Mapping[str, Shape], shape: Sequence[Any]) -> list[str]:
    wrong_rank = [f"{point} {list(ranges[point])}" for point in _POINTS if len(ranges[point]) != len(shape)]
    if wrong_rank:
        return [f"{' and '.join(wrong_rank)} must have the {len(shape)} dimensions of {list(shape)}"]
    problems = []
    for axis, size in enumerate(shape):
        low, usual, high = (ranges[point][axis] for point in _POINTS)
        if not low <= usual <= high:
            problems.append(f"axis {axis}: min {low}, opt {usual}, max {high} are not in ascending order")
        elif not isinstance(size, str) and (low, high) != (size, size):
            problems.append(f"axis {axis} is always {size}, not {low} to {high}")
    return problems


def _is_dynamic(shape: Sequence[Any]) -> bool:
    return any(isinstance(size, str) for size in shape)


def _names(names: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(names)
