"""Shape cases of explicit optimization profiles: each is run at its own min, opt, max and an odd value."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from buildsys.manifest.shape_cases import DimRange, Dims, case_values

_POINTS = ("min", "opt", "max")
_LONGEST_NAME = 100  # it is a file's name
Profile = Mapping[
    str, Mapping[str, Sequence[int]]
]  # input name -> {"min": shape, "opt": shape, "max": shape}
Inputs = Mapping[str, Mapping[str, Any]]


def profile_spans(
    profile: Profile, inputs: Inputs, dims: Mapping[str, DimRange]
) -> dict[str, DimRange]:
    """Return the range that a profile gives each named dimension of the ``inputs``.

    What ``dims`` say of steps and of the odd value holds here too, as far as it lies in the range.
    """
    spans: dict[str, DimRange] = {}
    for name, tensor in inputs.items():
        ranges = profile.get(name) or {}
        for axis, size in enumerate(tensor["shape"]):
            if (
                isinstance(size, str)
                and size not in spans
                and all(axis < len(ranges.get(p, ())) for p in _POINTS)
            ):
                low, usual, high = (ranges[point][axis] for point in _POINTS)
                spans[size] = _span(low, usual, high, dims.get(size, {}))
    return spans


def profile_cases(
    profile: Profile, inputs: Inputs, dims: Mapping[str, DimRange]
) -> dict[str, Dims]:
    """Return the values of the named dimensions in the four cases of one profile."""
    return case_values(profile_spans(profile, inputs, dims))


def name_of(values: Mapping[str, int]) -> str:
    """Return the name of a case that is none of the four of ``dims``: its values, so that all engines share it."""
    name = ",".join(f"{dim}={value}" for dim, value in sorted(values.items()))
    return (
        name
        if len(name) <= _LONGEST_NAME
        else f"shapes-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    )


def profiles_of(engines: Iterable[Mapping[str, Any]]) -> list[Profile]:
    """Return the explicit profiles of all engines."""
    return [profile for engine in engines for profile in engine.get("profiles") or ()]


def _span(low: int, usual: int, high: int, declared: DimRange) -> DimRange:
    odd = declared.get("odd")
    held = odd if odd is not None and low <= odd <= high else None
    return {
        "min": low,
        "opt": usual,
        "max": high,
        "odd": held,
        "multiple_of": declared.get("multiple_of") or 1,
    }
