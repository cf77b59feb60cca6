"""Statistics of measurements, and the rules of gates, in pure Python.

A single run says little: processes differ in memory layout, clocks and neighbors, and any test on
raw samples takes such differences for regressions. The unit of a gate is therefore a round, one
fresh process per side. The interval of the change (signed-rank bounds) decides: entirely above the
tolerance it is a regression, entirely within the tolerance a pass. Otherwise the rounds prove
nothing, and more follow; a change of about the tolerance stays undecided. As each look at the
rounds is another chance of a wrong verdict, the early ones need more confidence.
docs/benchmarks.md has the power and the false alarms of these rules.

Sources: M. Hollander, D. A. Wolfe, E. Chicken, "Nonparametric Statistical Methods", 3rd edition:
section 3.1 (exact distribution of the signed-rank statistic), 3.2 (Hodges-Lehmann estimator),
3.3 (its confidence bound), 3.6 (interval of the median).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
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


LOOKS = ((10, 0.99), (20, 0.99), (40, CONFIDENCE))  # rounds per side, one-sided confidence
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Change:
    """A figure's change relative to the baseline, positive is worse."""

    before: float
    after: float
    change: float
    low: float | None  # each end of the interval is a one-sided bound
    high: float | None
    is_regression: bool
    is_undecided: bool = False  # the interval contains the tolerance, or is not known
    confidence: float | None = None  # two-sided


def compare_rounds(
    before: Sequence[float],
    after: Sequence[float],
    tolerance: float,
    *,
    more_is_better: bool,
    confidence: float = CONFIDENCE,
) -> Change:
    """Compare the medians of rounds, paired in the order they were measured.

    ``confidence`` belongs to the one-sided bounds.

    Raises: ValueError: no rounds, unequally many, or a figure that is not positive.
    """
    if any(not 0 < value < math.inf for value in (*before, *after)):
        raise ValueError("a figure is not a positive number")
    sign = -1 if more_is_better else 1
    logs = [sign * math.log(b / a) for a, b in zip(before, after, strict=True)]
    worse_by = _drop if more_is_better else math.expm1
    change = worse_by(hodges_lehmann(logs))
    bound = signed_rank_bound(logs, confidence)
    upper = signed_rank_bound([-log for log in logs], confidence)
    low = None if bound is None else worse_by(bound)
    high = None if upper is None else worse_by(-upper)
    is_regression = low is not None and low > tolerance
    is_undecided = not is_regression and (high is None or high > tolerance)
    figures = median(before), median(after), change, low, high
    return Change(*figures, is_regression, is_undecided, 2 * confidence - 1)


def compare_values(before: float, after: float, tolerance: float) -> Change:
    """Compare two figures without noise; less is better."""
    change = 0.0 if before == after else math.inf if before == 0 else after / before - 1
    return Change(before, after, change, None, None, change > tolerance + _ROUNDING)


def _drop(log: float) -> float:
    """Compute the relative loss of a figure from the logarithm of before / after."""
    return -math.expm1(-log)
