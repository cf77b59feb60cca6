"""Shape cases of explicit optimization profiles."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from buildsys.manifest.shape_cases import DimRange, Dims, case_values

_POINTS = ("min", "opt", "max")
_LONGEST_NAME = 100  # a case's name is a file name
# input name -> {"min": shape, "opt": shape, "max": shape}
Profile = Mapping[str, Mapping[str, Sequence[int]]]
Inputs = Mapping[str, Mapping[str, Any]]


def profile_cases(
    profile: Profile, inputs: Inputs, dims: Mapping[str, DimRange]
) -> dict[str, Dims]:
    """Return the dimensions in the four cases of one profile.

    ``multiple_of`` and ``odd`` of ``dims`` apply here as well, as far as they fit the range.
    """
    spans: dict[str, DimRange] = {}
    for name, tensor in inputs.items():
        shapes = profile.get(name) or {}
        for axis, dim in enumerate(tensor["shape"]):
            known = all(axis < len(shapes.get(point, ())) for point in _POINTS)
            if isinstance(dim, str) and dim not in spans and known:
                low, usual, high = (shapes[point][axis] for point in _POINTS)
                declared = dims.get(dim, {})
                odd = declared.get("odd")
                spans[dim] = {
                    "min": low,
                    "opt": usual,
                    "max": high,
                    "odd": odd if odd is not None and low <= odd <= high else None,
                    "multiple_of": declared.get("multiple_of") or 1,
                }
    return case_values(spans)


def name_of(values: Mapping[str, int]) -> str:
    """Return the name of a profile's case: its sizes, shared by engines."""
    name = ",".join(f"{dim}={value}" for dim, value in sorted(values.items()))
    if len(name) <= _LONGEST_NAME:
        return name
    return f"shapes-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
