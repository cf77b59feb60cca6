"""Intervals and verdicts: how often they are wrong, by simulation with a known truth."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from evaluation_records import classified, drawn, metric_of, records_of, regressed

from buildsys.errors import StageError
from buildsys.evaluation.metric import Records
from buildsys.evaluation.regression import R2
from buildsys.evaluation.statistics import (
    Interval,
    interval_of_others,
    judge,
    paired_interval,
    samples_needed,
    tango_interval,
)
from buildsys.onnx_graphs.tensors import Array

PAIRS = 2000
DROP = 0.005
interval_of = cache(tango_interval)


def simulated(count: int, lost: float, gained: float, pairs: int = PAIRS) -> list[Interval]:
    """Draw pairs of models that differ in these shares of the population."""
    rng = np.random.default_rng(count)
    draws = rng.multinomial(count, [lost, gained, 1 - lost - gained], pairs)
    return [interval_of(int(b), int(c), count) for b, c, _ in draws]


def share(intervals: Sequence[Interval], verdict: str, drop: float = DROP) -> float:
    return sum(judge(interval, drop) == verdict for interval in intervals) / len(intervals)


@pytest.mark.parametrize("count", [200, 1000, 2000, 10000])
@pytest.mark.parametrize("gained", [0.0, 0.0005, 0.0025, 0.02])
def test_a_loss_of_exactly_drop_seldom_passes(count: int, gained: float) -> None:
    intervals = simulated(count, DROP + gained, gained)
    assert share(intervals, "passed") <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / PAIRS)
    assert share(intervals, "failed") <= 0.05


@pytest.mark.parametrize(("count", "differ"), [(2000, 0.002), (5500, 0.01)])
def test_an_engine_without_loss_passes_with_enough_samples(count: int, differ: float) -> None:
    intervals = simulated(count, differ / 2, differ / 2)
    assert share(intervals, "passed") >= 0.93
    assert share(intervals, "failed") == 0.0


@pytest.mark.parametrize(("count", "lost", "gained"), [(500, 0.01, 0.008), (2000, 0.004, 0.003)])
def test_other_samples_seldom_have_an_interval_beyond_the_expected(
    count: int, lost: float, gained: float
) -> None:
    intervals = simulated(count, lost, gained)
    pairs = list(zip(intervals[::2], intervals[1::2], strict=True))
    beyond = [other.high > interval_of_others(seen).high for seen, other in pairs]
    assert 0.02 < np.mean(beyond) < 0.08  # of few answers that differ
    assert all(interval_of_others(seen).loss == seen.loss for seen, _ in pairs)


def test_a_large_loss_fails() -> None:
    assert share(simulated(2000, 0.03, 0.005), "failed") >= 0.99


@pytest.mark.parametrize(("lost", "gained"), [(0.001, 0.0005), (0.002, 0.002), (0.01, 0.03)])
@pytest.mark.parametrize("count", [500, 2000])
def test_the_interval_covers_the_truth(count: int, lost: float, gained: float) -> None:
    truth = lost - gained
    covered = [i.low <= truth <= i.high for i in simulated(count, lost, gained)]
    assert np.mean(covered) >= 0.94


@pytest.mark.parametrize("count", [1, 100, 700])
def test_few_samples_never_pass_without_any_difference(count: int) -> None:
    interval = tango_interval(0, 0, count)
    assert interval.loss == 0
    assert interval.high == pytest.approx(3.8415 / (3.8415 + count), rel=1e-3)
    assert judge(interval, DROP) == "undecided"
    assert judge(tango_interval(0, 0, samples_needed(interval, DROP)), DROP) == "passed"


def test_the_interval_of_a_published_example() -> None:
    """Fagerland, Lydersen, Laake 2014: of 21 pairs, 1 and 7 differ."""
    interval = tango_interval(1, 7, 21)
    assert (interval.low, interval.high) == pytest.approx((-0.517, -0.026), abs=5e-4)


@pytest.mark.parametrize(("lost", "gained"), [(10, 0), (0, 10), (5, 5)])
def test_intervals_end_at_losing_all_or_nothing(lost: int, gained: int) -> None:
    interval = tango_interval(lost, gained, 10)
    assert -1 <= interval.low <= interval.loss <= interval.high <= 1


def test_the_number_of_samples_decides_most_evaluations() -> None:
    interval = simulated(1000, 0.005, 0.005, 1)[0]._replace(loss=0.0, deviation=0.1)
    needed = samples_needed(interval, DROP)
    assert 3000 < needed < 5000
    assert share(simulated(needed, 0.005, 0.005), "passed") >= 0.8


def test_a_number_of_samples_is_finite_whatever_the_loss() -> None:
    interval = Interval(DROP, -0.01, 0.02, 100, 0.1, "")
    assert samples_needed(interval, DROP) > 100
    assert samples_needed(interval._replace(loss=0.0), 0.0) > 100


def test_binary_metrics_use_the_samples_that_differ() -> None:
    labels = np.arange(100) % 3
    before, after = classified(labels, labels), classified(np.where(labels == 2, 0, labels), labels)
    interval = paired_interval(metric_of("top1"), before, after)
    assert interval == tango_interval(33, 0, 100)


@pytest.mark.parametrize("name", ["f1", "auroc", "rmse", "mae", "r2"])
def test_equal_records_are_no_proof_for_few_samples(name: str) -> None:
    rng = np.random.default_rng(0)
    records = drawn(name, rng, 60, 0.0)
    interval = paired_interval(metric_of(name), records, records)
    assert interval.loss == 0
    assert interval.high == pytest.approx(3.8415 / 63.8415, rel=1e-3)


@pytest.mark.parametrize("name", ["mae", "rmse"])
def test_bootstrap_intervals_cover_the_truth(name: str) -> None:
    """An engine with noise of its own, whose errors are 2 % larger."""
    rng, metric, truth, pairs = np.random.default_rng(5), metric_of(name), 0.02, 60
    covered, passed = 0, 0
    for _ in range(pairs):
        labels, error, noise = rng.normal(size=(3, 300))
        engine = np.sqrt(1.02**2 - 0.2**2) * error + 0.2 * noise
        before, after = (
            records_of(metric, labels + wrong, labels.tolist()) for wrong in (error, engine)
        )
        interval = paired_interval(metric, before, after)
        covered += interval.low <= truth <= interval.high
        passed += judge(interval, truth) == "passed"
    assert covered >= 0.93 * pairs
    assert passed <= 0.05 * pairs


@pytest.mark.parametrize(("count", "classes", "failing"), [(800, 2, DROP), (100, 10, 0.016)])
def test_rare_failures_seldom_pass_by_f1(count: int, classes: int, failing: float) -> None:
    """An engine that fails on few samples, which may not be drawn, also if a class is rare."""
    rng, metric, pairs = np.random.default_rng(7), metric_of("f1"), 60

    def failed(labels: Array) -> Records:
        return classified(np.where(rng.random(len(labels)) < failing, 1 - labels, labels), labels)

    labels = (np.arange(count) % classes == 0).astype(int)
    drop, before = 1 - metric.value(failed(np.tile(labels, 1000))), classified(labels, labels)
    verdicts = [judge(paired_interval(metric, before, failed(labels)), drop) for _ in range(pairs)]
    assert verdicts.count("passed") <= 0.05 * pairs
    assert verdicts.count("failed") <= 0.05 * pairs


@pytest.mark.parametrize(("name", "loss"), [("rmse", 0.25), ("mae", 0.25), ("r2", 0.09)])
def test_losses_of_errors_are_relative_and_of_shares_absolute(name: str, loss: float) -> None:
    labels = np.tile([0.0, 10.0], 50)
    before, after = (
        records_of(metric_of(name), labels + error, labels.tolist()) for error in (2.0, 2.5)
    )
    assert paired_interval(metric_of(name), before, after).loss == pytest.approx(loss)
    assert paired_interval(metric_of(name), after, before).loss < 0


def test_equal_records_give_equal_intervals() -> None:
    rng = np.random.default_rng(0)
    before, after = drawn("f1", rng, 200, 0.1), drawn("f1", rng, 200, 0.2)
    metric = metric_of("f1")
    assert paired_interval(metric, before, after) == paired_interval(metric, before, after)


def test_a_metric_without_values_of_draws_is_undecided() -> None:
    class Range(R2):
        """A metric of all rows, undefined without one of them."""

        title, draws = "range", 200

        def _value(self, records: Records) -> float:
            return 1.0 if len({*records["x"].tolist()}) == 30 else np.nan

    records = {"x": np.arange(30)}
    interval = paired_interval(Range({}), records, records)
    assert judge(interval, DROP) == "undecided"
    assert samples_needed(interval, DROP) > 1000


def test_a_loss_relative_to_0_is_refused() -> None:
    labels = np.arange(5.0)
    metric = metric_of("rmse")
    with pytest.raises(StageError, match="RMSE of the original is 0, and a loss is relative to it"):
        paired_interval(metric, regressed(labels, labels), regressed(labels + 1, labels))
