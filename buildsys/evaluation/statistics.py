"""Paired intervals of a metric's loss, and the verdict about it.

The loss of a share is the difference, any other loss is relative to the original's value. If
samples are right or wrong, Tango's score interval agrees with McNemar's test at a loss of 0 and is
honest when few samples differ, or none. Otherwise rows are resampled; as resampling cannot see
failures that these rows happen to lack, the interval is widened as Wilson's, where a failure costs
all of a share, or as much as the original's value. If samples of rare classes weigh more, Kish's
effective number of samples counts.

Sources: T. Tango, "Equivalence test and confidence interval for the difference in proportions for
the paired-sample design", Statistics in Medicine 17 (1998); B. Efron, R. Tibshirani, "An
Introduction to the Bootstrap", chapter 13; E. B. Wilson, JASA 22 (1927).
"""

from collections.abc import Callable
from math import ceil, sqrt
from typing import NamedTuple

import numpy as np

from buildsys.errors import StageError
from buildsys.evaluation.metric import Metric, Records

_Z = 1.959963984540054  # of a two-sided interval of 95 %
_Z_POWER = _Z + 0.8416212335729143  # 80 % of evaluations of the same loss get a verdict
# times its width, an interval of as many other samples ends there in about 95 % of cases
_OTHER = 1 + sqrt(2) * 1.6448536269514722 / _Z


class Interval(NamedTuple):
    """A loss with its 95 % interval; a gain is negative."""

    loss: float
    low: float
    high: float
    samples: int
    deviation: float  # of the loss of a sample
    method: str
    weight: float = 1.0  # samples per one that counts in full


def paired_interval(metric: Metric, original: Records, engine: Records) -> Interval:
    """Estimate how much the engine loses against the original on the same samples.

    Raises: StageError: a value is NaN, or the loss is relative to 0.
    """
    before, after = metric.value(original), metric.value(engine)
    count = len(next(iter(original.values())))
    if metric.is_binary:
        change = metric.errors(engine) - metric.errors(original)
        return tango_interval(int((change > 0).sum()), int((change < 0).sum()), count)
    if not metric.is_share and before == 0:
        problem = f"{metric.title} of the original is 0, and a loss is relative to it"
        raise StageError(problem, "use labels that are not its own outputs")

    def loss(before: float, after: float) -> float:
        difference = before - after if metric.higher_is_better else after - before
        return difference if metric.is_share else difference / abs(before)

    center = loss(before, after)
    rng = np.random.default_rng(0)  # equal records have equal intervals
    draws = (rng.integers(0, count, count) for _ in range(metric.draws))
    with np.errstate(all="ignore"):
        value = metric.value_of_rows
        losses = np.array([loss(value(original, rows), value(engine, rows)) for rows in draws])
    losses = losses[np.isfinite(losses)]
    losses = losses if len(losses) > 1 else np.array([-1.0, 1.0])
    deviation = float(losses.std())
    if metric.draws < Metric.draws:  # too few for percentiles
        below = above = _Z * deviation
    else:
        low, high = np.percentile(losses, (2.5, 97.5))
        below, above = max(0.0, center - low), max(0.0, high - center)
    effective = metric.effective_count(original)
    unseen = _Z**2 / (_Z**2 + effective) / 2
    return Interval(
        center,
        center - unseen - sqrt(unseen**2 + below**2),
        center + unseen + sqrt(unseen**2 + above**2),
        count,
        deviation * sqrt(count),
        f"paired bootstrap of {metric.draws} draws",
        count / effective,
    )


def tango_interval(lost: int, gained: int, count: int) -> Interval:
    """Estimate the loss of a share from the samples that only one side has right."""
    loss = (lost - gained) / count
    deviation = sqrt((lost + gained) / count - loss**2)

    def score(delta: float) -> float:
        """Test a loss of ``delta``; falls with it."""
        b = (2 * count - lost + gained) * delta - lost - gained
        c = -gained * delta * (1 - delta)
        gain = (sqrt(max(0.0, b * b - 8 * count * c)) - b) / (4 * count)
        variance = count * (2 * gain + delta * (1 - delta))
        return (lost - gained - count * delta) / sqrt(max(variance, 1e-12))

    low = _root(lambda delta: score(delta) - _Z, -1.0, loss)
    high = _root(lambda delta: score(delta) + _Z, loss, 1.0)
    return Interval(loss, low, high, count, deviation, "Tango's score interval")


def interval_of_others(interval: Interval) -> Interval:
    """Widen an interval to what as many other samples may show."""
    loss, low, high = interval[:3]
    return interval._replace(low=loss - _OTHER * (loss - low), high=loss + _OTHER * (high - loss))


def judge(interval: Interval, drop: float) -> str:
    """Decide on the largest allowed loss: passed, failed or undecided."""
    if interval.high <= drop:
        return "passed"
    return "failed" if interval.low > drop else "undecided"


def samples_needed(interval: Interval, drop: float) -> int:
    """Estimate how many samples decide, with a loss as measured, in 80 % of evaluations."""
    distance = max(abs(drop - interval.loss), drop / 10, 1e-6)
    unseen = _Z**2 * interval.weight / distance
    needed = unseen + (_Z_POWER * interval.deviation / distance) ** 2
    return max(ceil(needed), interval.samples + 1)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Find where a falling function is 0, by halving."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return (low + high) / 2
