"""Which golden case runs in which optimization profile of an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Shape = Sequence[int]
Ranges = Mapping[str, Mapping[str, Shape]]  # input -> {"min": shape, "opt": shape, "max": shape}


@dataclass(frozen=True)
class CaseRun:
    """One golden case in one profile; ``profile`` is None where the engine has none to choose from."""

    case: str
    profile: int | None


def runs_of(profiles: Sequence[Ranges], shapes: Mapping[str, Mapping[str, Shape]]) -> list[CaseRun]:
    """Return every case in every profile that holds it, profile by profile.

    ``shapes`` has the shapes of each case's inputs. An engine without profiles takes every case.
    """
    if not profiles:
        return [CaseRun(case, None) for case in shapes]
    return [CaseRun(case, index) for index, case in _held(profiles, shapes)]


def homeless(runs: Sequence[CaseRun], cases: Sequence[str]) -> list[str]:
    """Return the cases that no profile holds."""
    held = {run.case for run in runs}
    return [case for case in cases if case not in held]


def idle(runs: Sequence[CaseRun], profiles: Sequence[Ranges]) -> list[int]:
    """Return the profiles in which nothing runs."""
    used = {run.profile for run in runs}
    return [index for index in range(len(profiles)) if index not in used]


def shown_ranges(ranges: Ranges) -> str:
    """Return the ranges of a profile for a sentence: ``x [1, 3] to [8, 3]``."""
    return ", ".join(
        f"{name} {list(span['min'])} to {list(span['max'])}" for name, span in ranges.items()
    )


def shown_case(case: str, dims: Mapping[str, Any]) -> str:
    """Return a case with its sizes for a sentence: ``odd (batch 3)``; some are named after these already."""
    sizes = ", ".join(f"{name} {size}" for name, size in dims.items())
    return f"{case} ({sizes})" if sizes and "=" not in case else case


def _held(
    profiles: Sequence[Ranges], shapes: Mapping[str, Mapping[str, Shape]]
) -> Iterator[tuple[int, str]]:
    for index, ranges in enumerate(profiles):
        for case, inputs in shapes.items():
            if all(
                name not in inputs or _holds(span, inputs[name]) for name, span in ranges.items()
            ):
                yield index, case


def _holds(span: Mapping[str, Shape], shape: Shape) -> bool:
    low, high = span["min"], span["max"]
    return len(low) == len(shape) and all(
        a <= n <= b for a, n, b in zip(low, shape, high, strict=True)
    )
