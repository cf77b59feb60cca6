"""What must hold between the optimization profiles of an engine, the inputs that it takes, and ``dims``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from buildsys.manifest.checks.surgery import shapes_after_surgery
from buildsys.manifest.problem import Problem, suggest
from buildsys.manifest.value_tree import Key

if TYPE_CHECKING:
    from buildsys.manifest.checks.model import View

_POINTS = ("min", "opt", "max")
Ranges = dict[str, list[int]]


def profile_problems(view: View) -> Iterator[Problem]:
    """Yield what is wrong with the explicit profiles of all engines."""
    inputs: dict[str, list[Any]] | None = None
    for index in range(len(view.list("engines"))):
        for number, profile in enumerate(view.list("engines", index, "profiles")):
            if isinstance(profile, dict):
                inputs = shapes_after_surgery(view) if inputs is None else inputs
                yield from _profile(view, ("engines", index, "profiles", number), profile, inputs)


def _profile(
    view: View, key: Key, profile: dict[str, Any], inputs: dict[str, list[Any]]
) -> Iterator[Problem]:
    sizes: dict[
        tuple[str, str], tuple[str, int]
    ] = {}  # dimension, point -> where it was first, its size there
    for name in profile:
        if name not in inputs:
            hint = suggest(name, inputs, what="inputs")
            yield view.problem((*key, name), f"no input is named {name}", hint, of_key=True)
            continue
        if isinstance(profile[name], dict) and "values" in profile[name]:
            yield from _values(view, (*key, name), profile[name]["values"], inputs[name])
            continue
        ranges = _ranges_of(profile[name])
        found = list(_ranges(view, (*key, name), ranges, inputs[name]))
        yield from found
        if ranges and not found:
            yield from _one_size(view, (*key, name), ranges, inputs[name], sizes)
    for name in inputs:
        if name not in profile and any(isinstance(size, str) for size in inputs[name]):
            yield view.problem(
                key, f"the input {name} has dynamic dimensions and no range in this profile"
            )


def _values(view: View, key: Key, entry: Any, shape: list[Any]) -> Iterator[Problem]:
    """Yield what is wrong with the values of an input that decides shapes."""
    if any(isinstance(size, str) for size in shape) or len(shape) > 1:
        text = "values are for an input of a fixed shape with at most one dimension"
        yield view.problem(
            (*key, "values"), text, "give min, opt and max of its shape", of_key=True
        )
        return
    ranges = _ranges_of(entry)
    count = shape[0] if shape else 1
    for point, values in ranges.items():
        if len(values) != count:
            yield view.problem(
                (*key, "values", point), f"{len(values)} values, and the input has {count}"
            )
            return
    if len(ranges) < len(_POINTS):
        return
    for index, (low, best, high) in enumerate(
        zip(*(ranges[point] for point in _POINTS), strict=True)
    ):
        if not low <= best <= high:
            text = f"min {low}, opt {best}, max {high} of value {index} are not in ascending order"
            yield view.problem((*key, "values"), text)


def _ranges_of(entry: Any) -> Ranges:
    """Return the lists of numbers at min, opt and max as far as they are such."""
    given = {point: entry.get(point) for point in _POINTS} if isinstance(entry, dict) else {}
    return {
        point: sizes
        for point, sizes in given.items()
        if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
    }


def _ranges(view: View, key: Key, ranges: Ranges, shape: list[Any]) -> Iterator[Problem]:
    for point, sizes in ranges.items():
        if len(sizes) != len(shape):
            text = f"{len(sizes)} sizes, and the input has {len(shape)} dimensions"
            yield view.problem((*key, point), text, f"its shape is [{', '.join(map(str, shape))}]")
            return
    if len(ranges) < len(_POINTS):
        return
    for axis, size in enumerate(shape):
        low, best, high = (ranges[point][axis] for point in _POINTS)
        if not low <= best <= high:
            yield view.problem(
                key, f"min {low}, opt {best}, max {high} of axis {axis} are not in ascending order"
            )
        elif isinstance(size, int) and not low == high == size:
            yield view.problem(
                key, f"axis {axis} is {low} to {high}, and the input's shape has {size} there"
            )
        elif isinstance(size, str):
            yield from _within_dims(view, key, axis, size, {"min": low, "opt": best, "max": high})


def _within_dims(
    view: View, key: Key, axis: int, name: str, sizes: dict[str, int]
) -> Iterator[Problem]:
    span = view.map("dims", name)
    low, high, step = (
        _whole(span.get(field, default))
        for field, default in (("min", 0), ("max", 0), ("multiple_of", 1))
    )
    if low is None or high is None or step is None:
        return
    for point, size in sizes.items():
        if not low <= size <= high:
            text = f"axis {axis} ({name}) is {size}, and dims.{name} is {low} to {high}"
            hint = (
                "outputs are known and checked within dims alone: widen dims, or narrow the profile"
            )
            yield view.problem((*key, point), text, hint)
        elif step > 1 and size % step:
            text = f"axis {axis} ({name}) is {size}, and dims.{name}.multiple_of is {step}"
            yield view.problem(
                (*key, point), text, f"nearest: {size - size % step} or {size - size % step + step}"
            )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _one_size(
    view: View,
    key: Key,
    ranges: Ranges,
    shape: list[Any],
    sizes: dict[tuple[str, str], tuple[str, int]],
) -> Iterator[Problem]:
    """Yield where a dimension has two sizes at the same point of one profile: no shape could have both."""
    for axis, name in enumerate(shape):
        for point, given in ranges.items() if isinstance(name, str) else ():
            place, size = sizes.setdefault(
                (name, point), (f"axis {axis} of {key[-1]}", given[axis])
            )
            if size != given[axis]:
                text = f"axis {axis} ({name}) is {given[axis]}, and {place}, which is {name} as well, is {size}"
                yield view.problem(
                    (*key, point), text, "give both the same size, or two names in dims"
                )
