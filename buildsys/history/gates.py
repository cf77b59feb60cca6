"""Rules of gates: regressions of a build against its baseline.

A single run says little: processes differ in memory layout, clocks and neighbors, and any test on
raw samples takes such differences for regressions. The unit is therefore a round, one fresh process
per side. The interval of the change (signed-rank bounds) decides: entirely above the tolerance it
is a regression, entirely within the tolerance a pass. Otherwise the rounds prove nothing, and more
follow; a change of about the tolerance stays undecided. As each look at the rounds is another
chance of a wrong verdict, the early ones need more confidence.
docs/benchmarks.md has the power and the false alarms of these rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from buildsys.history.statistics import (
    CONFIDENCE,
    hodges_lehmann,
    median,
    signed_rank_bound,
)

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

    ``confidence`` is that of the one-sided bounds.

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
