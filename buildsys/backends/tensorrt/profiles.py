"""Optimization profiles: an engine's ranges of shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from buildsys.backends.interface import DeviceTensor
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import TensorRTLibrary
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor

Shape = tuple[int, ...]
# input name -> {"min": shape, "opt": shape, "max": shape}, and {"min_values": …} if its values
# decide shapes
Profile = dict[str, dict[str, Shape]]
_POINTS = ("min", "opt", "max")


def resolve_profiles(
    inputs: Mapping[str, Mapping[str, Any]],
    dims: Mapping[str, Mapping[str, Any]],
    explicit: Sequence[Mapping[str, Mapping[str, Any]]] | None,
) -> list[Profile]:
    """Make an engine's profiles: its explicit ones, or one from ``dims``.

    The manifest's checks have compared explicit ones with the inputs. Inputs without a dynamic
    dimension have no entry; a model without dynamic inputs has no profile.
    """
    dynamic = {
        name: tensor["shape"]
        for name, tensor in inputs.items()
        if any(isinstance(size, str) for size in tensor["shape"])
    }
    if explicit is None:
        profile = {
            name: {
                point: tuple(dims[size][point] if isinstance(size, str) else size for size in shape)
                for point in _POINTS
            }
            for name, shape in dynamic.items()
        }
        return [profile] if profile else []
    profiles = [
        {
            name: _explicit_range(ranges, inputs.get(name, {}).get("shape", ()))
            for name, ranges in ranges_of.items()
            if name in dynamic or name not in inputs or "values" in ranges
        }
        for ranges_of in explicit
    ]
    return profiles if any(profiles) else []


def _explicit_range(ranges: Mapping[str, Any], shape: Sequence[Any]) -> dict[str, Shape]:
    if "values" not in ranges:
        return {point: tuple(ranges[point]) for point in _POINTS}
    values = {f"{point}_values": tuple(ranges["values"][point]) for point in _POINTS}
    return {**dict.fromkeys(_POINTS, tuple(shape)), **values}


def check_against_graph(
    profiles: Sequence[Profile],
    shapes: Mapping[str, Sequence[int]],
    deciding: AbstractSet[str] = frozenset(),
) -> None:
    """Check profiles against the graph's inputs.

    ``shapes`` are the graph's, -1 for a dynamic size; the values of the inputs in ``deciding``
    decide shapes.
    """
    problems = [
        f"profile {number}: {problem}"
        for number, profile in enumerate(profiles)
        for problem in _mismatches(profile, shapes)
    ]
    for name, shape in shapes.items():
        spans = [ranges.get(name, {}) for ranges in profiles] or [{}]
        if -1 in shape and not all(spans):
            problems.append(
                f"the graph's input {name} has dynamic sizes, and there is no range for it"
            )
        if name in deciding and not all("min_values" in span for span in spans):
            problems.append(
                f"the values of the input {name} decide shapes inside the network, and no range is"
                f" given: profiles: [{{{name}: {{values: {{min: […], opt: […], max: […]}}}}}}]"
            )
    if problems:
        hint = "correct dims or the engine's profiles, or export the graph with other axes"
        raise StageError("; ".join(problems), hint)


def read_profiles(library: TensorRTLibrary, engine: Any, inputs: Iterable[str]) -> list[Profile]:
    """Read an engine's profiles; there is one if all shapes are fixed."""
    profiles = []
    for number in range(engine.num_optimization_profiles):
        profile: Profile = {}
        for name in inputs:
            low, usual, high = map(tuple, engine.get_tensor_profile_shape(name, number))
            span = {"min": low, "opt": usual, "max": high}
            values = version_adapter.profile_values(library, engine, name, number) or []
            points = list(zip(span, values, strict=False))
            # TensorRT 8.6 returns one value of several
            if all(len(numbers) == np.prod(span[point]) for point, numbers in points):
                span.update({f"{point}_values": numbers for point, numbers in points})
            profile[name] = span
        profiles.append(profile)
    return profiles


def choose_profile(
    profiles: Sequence[Profile], inputs: Mapping[str, Tensor | DeviceTensor], chosen: int | None
) -> int:
    """Choose the first profile that holds the inputs, or ``chosen``."""
    candidates = range(len(profiles)) if chosen is None else [chosen]
    for number in candidates:
        if 0 <= number < len(profiles) and _fits(profiles[number], inputs):
            return number
    shapes = {name: value.shape for name, value in inputs.items()}
    which = "no optimization profile" if chosen is None else f"no optimization profile {chosen}"
    existing = "; ".join(
        f"profile {number}: {name} {list(span['min'])} to {list(span['max'])}"
        for number, ranges in enumerate(profiles)
        for name, span in ranges.items()
    )
    raise StageError(f"{which} of the engine holds the shapes {shapes}", existing)


def _fits(ranges: Profile, inputs: Mapping[str, Tensor | DeviceTensor]) -> bool:
    for name, value in inputs.items():
        span = ranges[name]
        checks = [(span["min"], value.shape, span["max"])]
        if "min_values" in span and isinstance(value, Tensor):
            values = tuple(int(number) for number in np.ravel(value.array))
            checks.append((span["min_values"], values, span["max_values"]))
        for low, sizes, high in checks:
            if len(low) != len(sizes):
                return False
            if not all(a <= n <= b for a, n, b in zip(low, sizes, high, strict=True)):
                return False
    return True


def _mismatches(ranges_of: Profile, shapes: Mapping[str, Sequence[int]]) -> Iterator[str]:
    for name, ranges in ranges_of.items():
        if name not in shapes:
            yield f"the graph has no input {name}, only {', '.join(shapes)}"
            continue
        spans = list(zip(ranges["min"], ranges["max"], strict=True))
        if len(spans) != len(shapes[name]):
            yield f"the graph's input {name} has {len(shapes[name])} dimensions, not {len(spans)}"
            continue
        for axis, (size, (low, high)) in enumerate(zip(shapes[name], spans, strict=True)):
            if size >= 0 and not low == high == size:
                yield f"the graph fixes axis {axis} of {name} at {size}, not {low} to {high}"
