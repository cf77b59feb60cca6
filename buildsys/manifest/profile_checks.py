"""Checks of the optimization profiles of engines."""

from __future__ import annotations

from typing import Any

from buildsys.manifest.problem import Problems, suggest
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView, shapes_after_surgery

_POINTS = ("min", "opt", "max")
Shape = list[Any]
Ranges = dict[str, list[int]]


def profile_problems(view: ManifestView) -> Problems:
    """Yield the problems of the explicit profiles of all engines."""
    if (inputs := shapes_after_surgery(view)) is not None:
        for path, profile in view.maps("engines", ..., "profiles", ...):
            yield from _profile(view, path, profile, inputs)


def _profile(
    view: ManifestView, path: FieldPath, profile: dict[str, Any], inputs: dict[str, Shape]
) -> Problems:
    sizes: dict[tuple[str, str], tuple[str, int]] = {}  # dimension, point -> first place and size
    for name, entry in profile.items():
        if name not in inputs:
            hint = suggest(name, inputs, what="inputs")
            yield view.problem((*path, name), f'unknown input "{name}"', hint, of_key=True)
            continue
        shape, place = inputs[name], (*path, name)
        if isinstance(entry, dict) and "values" in entry:
            if any(isinstance(size, str) for size in shape) or len(shape) > 1:
                text = "a range of values needs an input of fixed shape with at most one dimension"
                hint = "give min, opt and max of its shape instead"
                yield view.problem((*place, "values"), text, hint, of_key=True)
                continue
            place, entry = (*place, "values"), entry["values"]
            shape = [None] * (shape[0] if shape else 1)  # any values
        ranges = _ranges_of(entry)
        problems = list(_range_problems(view, place, ranges, shape))
        yield from problems
        for axis, dim in enumerate([] if problems else shape):
            for point, values in ranges.items() if isinstance(dim, str) else ():
                first, size = sizes.setdefault(
                    (dim, point), (f"axis {axis} of {name}", values[axis])
                )
                if size != values[axis]:
                    text = (
                        f"axis {axis} ({dim}) is {values[axis]}, but {first} (also {dim}) is {size}"
                    )
                    hint = "give both the same size, or two names in dims"
                    yield view.problem((*place, point), text, hint)
    for name, shape in inputs.items():
        if name not in profile and any(isinstance(size, str) for size in shape):
            text = f'the profile has no range for the dynamic input "{name}"'
            yield view.problem(path, text, f"add {name}: {{min: […], opt: […], max: […]}}")


def _ranges_of(entry: Any) -> Ranges:
    """Select the valid lists of integers among min, opt and max."""
    points = {point: entry.get(point) for point in _POINTS} if isinstance(entry, dict) else {}
    return {
        point: sizes
        for point, sizes in points.items()
        if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
    }


def _range_problems(view: ManifestView, path: FieldPath, ranges: Ranges, shape: Shape) -> Problems:
    for point, sizes in ranges.items():
        if len(sizes) != len(shape):
            text = f"expected {len(shape)} numbers, found {len(sizes)}"
            yield view.problem((*path, point), text, "one per dimension, or per element of values")
            return
    if len(ranges) < len(_POINTS):
        return
    for axis, size in enumerate(shape):
        low, best, high = chosen = [ranges[point][axis] for point in _POINTS]
        if not low <= best <= high:
            text = f"min {low}, opt {best}, max {high} of axis {axis} are not ascending"
            yield view.problem(path, text, "reorder them")
        elif isinstance(size, int) and not low == high == size:
            text = f"axis {axis} is {low} to {high}, but the input has the fixed size {size} there"
            yield view.problem(path, text, f"use {size} for min, opt and max")
        elif isinstance(size, str) and (span := view.dim_range(size)):
            least, most, step = span
            for point, value in zip(_POINTS, chosen, strict=True):
                if not least <= value <= most or value % step:
                    multiple = f" in steps of {step}" if step != 1 else ""
                    text = f"axis {axis} ({size}) is {value}, outside the range {least} to {most}"
                    hint = "widen dims or narrow the profile: outputs are verified within dims only"
                    yield view.problem((*path, point), f"{text} of dims.{size}{multiple}", hint)
