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
        elif isinstance(entry, dict) and "values" in entry:
            yield from _value_range(view, (*path, name, "values"), entry["values"], inputs[name])
        else:
            ranges = _ranges_of(entry)
            problems = list(_shape_range(view, (*path, name), ranges, inputs[name]))
            yield from problems
            named = enumerate(inputs[name]) if not problems else ()
            for axis, dim in ((axis, dim) for axis, dim in named if isinstance(dim, str)):
                for point, values in ranges.items():
                    here = f"axis {axis} of {name}", values[axis]
                    place, size = sizes.setdefault((dim, point), here)
                    if size != values[axis]:
                        text = f"axis {axis} ({dim}) is {values[axis]}, but {place} (also {dim}) is"
                        hint = "give both the same size, or two names in dims"
                        yield view.problem((*path, name, point), f"{text} {size}", hint)
    for name, shape in inputs.items():
        if name not in profile and any(isinstance(size, str) for size in shape):
            text = f'the profile has no range for the dynamic input "{name}"'
            yield view.problem(path, text, f"add {name}: {{min: […], opt: […], max: […]}}")


def _value_range(view: ManifestView, path: FieldPath, entry: Any, shape: Shape) -> Problems:
    if any(isinstance(size, str) for size in shape) or len(shape) > 1:
        text = "a range of values needs an input of fixed shape with at most one dimension"
        yield view.problem(path, text, "give min, opt and max of its shape instead", of_key=True)
        return
    ranges, count = _ranges_of(entry), shape[0] if shape else 1
    for point, values in ranges.items():
        if len(values) != count:
            text = f"expected {count} values, one per element of the input, found {len(values)}"
            yield view.problem((*path, point), text)
            return
    if len(ranges) == len(_POINTS):
        for index, (low, best, high) in enumerate(zip(*ranges.values(), strict=True)):
            if not low <= best <= high:
                text = f"min {low}, opt {best}, max {high} of value {index} are not ascending"
                yield view.problem(path, text, "reorder them")


def _ranges_of(entry: Any) -> Ranges:
    """Select the valid lists of integers among min, opt and max."""
    points = {point: entry.get(point) for point in _POINTS} if isinstance(entry, dict) else {}
    return {
        point: sizes
        for point, sizes in points.items()
        if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
    }


def _shape_range(view: ManifestView, path: FieldPath, ranges: Ranges, shape: Shape) -> Problems:
    for point, sizes in ranges.items():
        if len(sizes) != len(shape):
            text = (
                f"expected {len(shape)} sizes, one per dimension of the input, found {len(sizes)}"
            )
            hint = f"its shape is [{', '.join(map(str, shape))}]"
            yield view.problem((*path, point), text, hint)
            return
    if len(ranges) < len(_POINTS):
        return
    for axis, size in enumerate(shape):
        low, best, high = (ranges[point][axis] for point in _POINTS)
        if not low <= best <= high:
            text = f"min {low}, opt {best}, max {high} of axis {axis} are not ascending"
            yield view.problem(path, text, "reorder them")
        elif isinstance(size, int) and not low == high == size:
            text = f"axis {axis} is {low} to {high}, but the input has the fixed size {size} there"
            yield view.problem(path, text, f"use {size} for min, opt and max")
        elif isinstance(size, str) and (span := view.dim_range(size)):
            least, most, step = span
            for point in _POINTS:
                chosen = ranges[point][axis]
                text = f"axis {axis} ({size}) is {chosen}, "
                if not least <= chosen <= most:
                    text += f"outside the range {least} to {most} of dims.{size}"
                    hint = "widen dims or narrow the profile: outputs are verified within dims only"
                    yield view.problem((*path, point), text, hint)
                elif rest := chosen % step:
                    text += f"but dims.{size}.multiple_of is {step}"
                    hint = f"nearest: {chosen - rest} or {chosen - rest + step}"
                    yield view.problem((*path, point), text, hint)
