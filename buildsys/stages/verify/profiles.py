"""Golden cases and the optimization profiles they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import le
from typing import Any

Shape = Sequence[int]
Ranges = Mapping[str, Mapping[str, Shape]]  # input -> {"min": shape, "opt": shape, "max": shape}


@dataclass(frozen=True)
class CaseRun:
    """One golden case in one profile; None without profiles."""

    case: str
    profile: int | None


def plan_runs(
    profiles: Sequence[Ranges], shapes: Mapping[str, Mapping[str, Shape]]
) -> list[CaseRun]:
    """Return every case in every profile it fits, profile by profile.

    ``shapes`` maps each case to its input shapes. An engine without profiles takes every case.
    """
    if not profiles:
        return [CaseRun(case, None) for case in shapes]
    return [
        CaseRun(case, index)
        for index, ranges in enumerate(profiles)
        for case, inputs in shapes.items()
        if all(
            len(span["min"]) == len(inputs[name])
            and all(map(le, span["min"], inputs[name]))
            and all(map(le, inputs[name], span["max"]))
            for name, span in ranges.items()
            if name in inputs
        )
    ]


def uncovered_cases(runs: Sequence[CaseRun], cases: Sequence[str]) -> list[str]:
    """Return the cases without a fitting profile."""
    covered = {run.case for run in runs}
    return [case for case in cases if case not in covered]


def unused_profiles(runs: Sequence[CaseRun], profiles: Sequence[Ranges]) -> list[int]:
    """Return the profiles without a fitting case."""
    used = {run.profile for run in runs}
    return [index for index in range(len(profiles)) if index not in used]


def format_ranges(ranges: Ranges) -> str:
    """Return the ranges as in ``x [1, 3] to [8, 3]``."""
    return ", ".join(
        f"{name} {list(span['min'])} to {list(span['max'])}" for name, span in ranges.items()
    )


def format_case(case: str, dims: Mapping[str, Any]) -> str:
    """Return a case with its sizes, as in ``odd (batch 3)``."""
    sizes = ", ".join(f"{name} {size}" for name, size in dims.items())
    return f"{case} ({sizes})" if sizes and "=" not in case else case
