"""Statistics of measurements, in pure Python.

Sources: M. Hollander, D. A. Wolfe, E. Chicken, "Nonparametric Statistical Methods", 3rd edition:
section 3.1 (exact distribution of the signed-rank statistic), 3.2 (Hodges-Lehmann estimator),
3.3 (its confidence bound), 3.6 (interval of the median).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A median with its confidence interval."""

    low: float
    median: float
    high: float


def median(values: Sequence[float]) -> float:
    """Compute the median. Raises: ValueError: no values, or one of them is NaN."""
    ordered = _ordered(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-middle - 1]) / 2


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Compute the median of independent values with its two-sided interval.

    The interval ends at two of the values, whatever their distribution. None: there are too few
    of them (less than 6 for 95 %).
    """
    ordered = _ordered(values)
    count, rank = len(ordered), 0
    # the number of values below the median is binomial; in integers, as 2**count may be no float
    allowed = int((1 - confidence) / 2 * 2**53) << count >> 53
    ways = below = 1
    while below <= allowed:
        rank += 1
        ways = ways * (count - rank + 1) // rank
        below += ways
    if rank == 0:
        return None
    return Interval(ordered[rank - 1], median(ordered), ordered[-rank])


def hodges_lehmann(differences: Sequence[float]) -> float:
    """Compute the Hodges-Lehmann estimate of the center of paired differences."""
    return median(_walsh_averages(differences))


def signed_rank_bound(differences: Sequence[float], confidence: float = CONFIDENCE) -> float | None:
    """Compute the lower one-sided confidence bound of the center of paired differences.

    It belongs to the exact Wilcoxon signed-rank test: the bound is above 0 if the test rejects
    "the center is at most 0". None: there are too few differences (less than 5 for 95 %).
    """
    averages = sorted(_walsh_averages(differences))
    counts = _rank_sum_counts(len(differences))
    allowed, below, rank = (1 - confidence) * 2 ** len(differences), 0, 0
    while below + counts[rank] <= allowed:
        below += counts[rank]
        rank += 1
    return averages[rank - 1] if rank else None


def _ordered(values: Sequence[float]) -> list[float]:
    if not values or any(math.isnan(value) for value in values):
        raise ValueError("no values" if not values else "a value is NaN")
    return sorted(values)


def _walsh_averages(differences: Sequence[float]) -> list[float]:
    """List the averages of all pairs, self-pairs included."""
    ordered = _ordered(differences)
    return [(a + b) / 2 for i, a in enumerate(ordered) for b in ordered[i:]]


@cache
def _rank_sum_counts(count: int) -> list[int]:
    """Count the sign patterns by sum of positive ranks."""
    counts = [1]
    for rank in range(1, count + 1):
        shifted = [0] * rank + counts
        counts = [a + b for a, b in zip([*counts, *[0] * rank], shifted, strict=True)]
    return counts
