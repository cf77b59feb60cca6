"""Rules of gates: regressions of a build against its baseline.

A single run says little: processes differ in memory layout, clocks and neighbors, and any test on
raw samples takes such differences for regressions. The unit is therefore a round, one fresh process
per side. The interval of the change (signed-rank bounds) decides: entirely above the tolerance it
is a regression, entirely within the tolerance a pass. Otherwise the rounds prove nothing, and more
follow; a change of about the tolerance stays undecided. As each look at the rounds is another
chance of a wrong verdict, the early ones need more confidence.

An earlier build that cannot run any more has left figures of its nights. They differ by the state
of the machine as well, so the unit is then a night. Its spread is known from the earlier nights
only (robust z-score), and one bad night is no regression: three nights confirm it, or a night worse
than 19 earlier ones (5 % by chance).
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
    robust_sigma,
    robust_z,
    signed_rank_bound,
)

LOOKS = ((10, 0.99), (20, 0.99), (40, CONFIDENCE))  # rounds per side, one-sided confidence
MOST_Z = 3.5
_ROUNDING = 1e-9
LEAST_EARLIER, MOST_EARLIER = 5, 30  # nights to compare with
CONFIRMING, MOST_RECENT = 3, 5  # nights of this build
_CLEARLY_MORE = 19  # earlier nights, all of them better than a regression of one night
_ONE_SIDED_Z = 1.645  # for CONFIDENCE
_OF_MEDIAN = math.sqrt(math.pi / 2)  # its standard error, relative to that of the mean


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
    confidence: float | None = None  # of the interval, two-sided
    is_unconfirmed: bool = False  # a regression unless the last nights were bad ones


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


def compare_nights(
    earlier: Sequence[float], recent: Sequence[float], tolerance: float, *, more_is_better: bool
) -> Change | None:
    """Compare recent nights' median with earlier ones; None without enough nights.

    Raises: ValueError: no recent nights, or a figure that is not positive.
    """
    if not recent or any(not 0 < value < math.inf for value in recent):
        raise ValueError("a figure is not a positive number")
    known = [value for value in earlier if 0 < value < math.inf]
    if len(known) < LEAST_EARLIER:
        return None
    sign = -1 if more_is_better else 1
    before, after = ([sign * math.log(value) for value in values] for values in (known, recent))
    shift, score = median(after) - median(before), robust_z(median(after), before)
    error = robust_sigma(before) * _ONE_SIDED_Z * _OF_MEDIAN
    error *= math.sqrt(1 / len(before) + 1 / len(after))
    worse_by = _drop if more_is_better else math.expm1
    change, low, high = map(worse_by, (shift, shift - error, shift + error))
    is_worse = score > MOST_Z and change > tolerance
    is_clear = len(before) >= _CLEARLY_MORE and min(after) > max(before)
    is_regression = is_worse and (is_clear or len(after) >= CONFIRMING)
    is_undecided = not is_regression and high > tolerance
    is_unconfirmed = is_worse and not is_regression
    verdict = is_regression, is_undecided, 2 * CONFIDENCE - 1, is_unconfirmed
    return Change(median(known), median(recent), change, low, high, *verdict)


def compare_values(before: float, after: float, tolerance: float) -> Change:
    """Compare two figures without noise; less is better."""
    change = 0.0 if before == after else math.inf if before == 0 else after / before - 1
    return Change(before, after, change, None, None, change > tolerance + _ROUNDING)


def _drop(log: float) -> float:
    """Return the relative loss of a figure from the logarithm of before / after."""
    return -math.expm1(-log)
