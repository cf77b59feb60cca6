"""Rules of gates on simulated measurements."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buildsys.history.gates import (
    CONFIRMING,
    LOOKS,
    compare_nights,
    compare_rounds,
    compare_values,
)


def rounds(draw: random.Random, count: int, slower: float = 0.0) -> tuple[list[float], list[float]]:
    """Return medians of paired rounds: machine states of 2 %, one run in ten disturbed by 8 %."""

    def side(factor: float) -> float:
        disturbed = 1.08 if draw.random() < 0.1 else 1.0
        return 2.0 * factor * disturbed * math.exp(draw.gauss(0, 0.02))

    return [side(1.0) for _ in range(count)], [side(1.0 + slower) for _ in range(count)]


def share_of_failures(count: int, slower: float, trials: int = 200) -> float:
    draw = random.Random(3)
    found = [
        compare_rounds(*rounds(draw, count, slower), 0.05, more_is_better=False)
        for _ in range(trials)
    ]
    return sum(one.is_regression for one in found) / trials


def test_twenty_rounds_find_a_slowdown_and_raise_no_false_alarm_in_noise() -> None:
    assert share_of_failures(20, 0.1) >= 0.95
    assert share_of_failures(20, 0.03) <= 0.05


def verdicts_with_looks(slower: float, trials: int = 200) -> tuple[float, float]:
    draw, failed, passed = random.Random(4), 0, 0
    for _ in range(trials):
        before, after = rounds(draw, LOOKS[-1][0], slower)
        for count, confidence in LOOKS:
            found = compare_rounds(
                before[:count],
                after[:count],
                0.05,
                more_is_better=False,
                confidence=confidence,
            )
            if not found.is_undecided:
                break
        failed += found.is_regression
        passed += not (found.is_regression or found.is_undecided)
    return failed / trials, passed / trials


def test_looking_repeatedly_decides_clear_changes_and_seldom_errs_at_the_tolerance() -> None:
    failed, passed = verdicts_with_looks(0.05)
    assert max(failed, passed) <= 0.08
    assert verdicts_with_looks(0.09)[0] >= 0.95
    assert verdicts_with_looks(0.01)[1] >= 0.95


@pytest.mark.parametrize("tolerance", [0.05, 0.2])
def test_a_change_up_to_the_whole_tolerance_passes_and_more_fails(tolerance: float) -> None:
    before = [2.0 + 0.001 * number for number in range(10)]
    for share, is_regression in ((0.6, False), (0.99, False), (1.01, True)):
        after = [value * (1 + share * tolerance) for value in before]
        found = compare_rounds(before, after, tolerance, more_is_better=False)
        assert found.change == pytest.approx(share * tolerance)
        assert (found.is_regression, found.is_undecided) == (is_regression, False)


def test_an_interval_with_the_tolerance_inside_is_undecided() -> None:
    after = [2.0 * factor for factor in (1.02, 1.03, 1.05, 1.06, 1.08, 1.09)]
    found = compare_rounds([2.0] * 6, after, 0.05, more_is_better=False)
    assert found.low is not None
    assert found.high is not None
    assert 0 < found.low < 0.05 < found.high
    assert (found.is_regression, found.is_undecided) == (False, True)
    few = compare_rounds([2.0] * 4, [2.0] * 4, 0.05, more_is_better=False)
    assert (few.is_regression, few.is_undecided) == (False, True)


def test_a_large_change_that_is_not_certain_is_no_regression() -> None:
    before, after = [2.0] * 6, [1.9, 2.6, 1.8, 2.7, 2.4, 1.9]
    found = compare_rounds(before, after, 0.05, more_is_better=False)
    assert found.low is not None
    assert found.low < 0
    assert not found.is_regression


def test_less_throughput_is_a_regression_and_more_is_none() -> None:
    before = [100.0 + number for number in range(8)]
    fewer = compare_rounds(before, [b / 2 for b in before], 0.05, more_is_better=True)
    assert fewer.change == pytest.approx(0.5)  # half the throughput is 50 % worse
    assert fewer.low is not None
    assert fewer.low <= fewer.change
    assert fewer.is_regression
    more = compare_rounds(before, [b * 1.1 for b in before], 0.05, more_is_better=True)
    assert more.change == pytest.approx(-0.1)
    assert not more.is_regression


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_figure_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not a positive number"):
        compare_rounds([1.0, value], [1.0, 1.0], 0.05, more_is_better=False)


def nights(draw: random.Random, count: int, slower: float = 0.0, sd: float = 0.01) -> list[float]:
    """Return medians of nights, one in ten of them disturbed by 8 %."""
    return [
        2.0 * (1 + slower) * (1.08 if draw.random() < 0.1 else 1.0) * math.exp(draw.gauss(0, sd))
        for _ in range(count)
    ]


def verdicts(slower: float, recent: int, sd: float, trials: int = 300) -> tuple[float, float]:
    """Return the shares of failed and of passed comparisons with 30 nights."""
    draw, failed, passed = random.Random(5), 0, 0
    for _ in range(trials):
        figures = nights(draw, 30, sd=sd), nights(draw, recent, slower, sd)
        found = compare_nights(*figures, 0.05, more_is_better=False)
        assert found is not None
        failed += found.is_regression
        passed += not (found.is_regression or found.is_undecided or found.is_unconfirmed)
    return failed / trials, passed / trials


@pytest.mark.parametrize("recent", [1, 3, 5])
def test_nights_raise_few_false_alarms_and_never_hide_a_slowdown(recent: int) -> None:
    assert verdicts(0.0, recent, 0.01)[0] <= 0.05
    assert verdicts(0.05, recent, 0.01)[1] <= 0.05
    if recent >= CONFIRMING:
        failed, passed = verdicts(0.1, recent, 0.005)
        assert (failed >= 0.95, passed) == (True, 0.0)
        assert verdicts(0.0, recent, 0.01)[1] >= 0.95


NIGHTS = [2.0, 2.01, 1.99, 2.02, 1.98, 2.0, 5.0]


def test_a_regression_takes_several_nights_a_size_and_a_robust_score() -> None:
    once = compare_nights(NIGHTS, [2.2], 0.05, more_is_better=False)
    assert once is not None
    assert (once.is_regression, once.is_unconfirmed) == (False, True)
    confirmed = compare_nights(NIGHTS, [2.2, 2.19, 2.21], 0.05, more_is_better=False)
    assert confirmed is not None
    assert confirmed.is_regression
    assert (confirmed.before, confirmed.after) == (2.0, 2.2)
    assert confirmed.change == pytest.approx(0.1)
    assert confirmed.low is not None
    assert confirmed.high is not None
    assert 0.05 < confirmed.low < 0.1 < confirmed.high
    small = compare_nights(NIGHTS, [2.04] * 3, 0.05, more_is_better=False)
    assert small is not None
    assert not (small.is_regression or small.is_unconfirmed or small.is_undecided)
    scattered = compare_nights([1.5, 2.0, 2.6, 1.7, 2.2], [2.4] * 3, 0.05, more_is_better=False)
    assert scattered is not None
    assert (scattered.is_regression, scattered.is_undecided) == (False, True)


def test_one_bad_night_among_three_is_no_regression() -> None:
    found = compare_nights(NIGHTS, [2.2, 2.0, 2.01], 0.05, more_is_better=False)
    assert found is not None
    assert not (found.is_regression or found.is_unconfirmed or found.is_undecided)


def test_one_night_is_enough_if_it_is_worse_than_nineteen_others() -> None:
    steady = [2.0 + 0.001 * number for number in range(19)]
    for earlier, is_enough in ((steady, True), (steady[:18], False), ([*steady, 2.3], False)):
        found = compare_nights(earlier, [2.2], 0.05, more_is_better=False)
        assert found is not None
        assert (found.is_regression, found.is_unconfirmed) == (is_enough, not is_enough)


@pytest.mark.parametrize("earlier", [[], [2.0] * 4, [2.0, 2.0, 2.0, 2.0, math.nan]])
def test_too_few_earlier_nights_are_no_comparison(earlier: list[float]) -> None:
    assert compare_nights(earlier, [2.0], 0.05, more_is_better=False) is None


@pytest.mark.parametrize("recent", [[], [math.nan], [2.0, 0.0], [math.inf]])
def test_an_impossible_night_is_refused(recent: list[float]) -> None:
    with pytest.raises(ValueError, match="not a positive number"):
        compare_nights(NIGHTS, recent, 0.05, more_is_better=False)


FIGURE = st.floats(0.001, 1000.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(FIGURE, min_size=5, max_size=12), st.lists(FIGURE, min_size=1, max_size=5))
def test_nights_are_compared_by_ratio_in_any_order_and_unit(
    earlier: list[float], recent: list[float]
) -> None:
    found = compare_nights(earlier, recent, 0.05, more_is_better=False)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.change <= found.high
    assert not (found.is_regression and found.is_unconfirmed)
    assert compare_nights(earlier[::-1], recent[::-1], 0.05, more_is_better=False) == found
    doubled = ([2 * value for value in values] for values in (earlier, recent))
    scaled = compare_nights(*doubled, 0.05, more_is_better=False)
    assert scaled is not None
    assert scaled.change == pytest.approx(found.change, rel=1e-9, abs=1e-9)
    # a throughput is worse by as much as the time per item
    rates = ([1 / value for value in values] for values in (earlier, recent))
    slower = compare_nights(*rates, 0.05, more_is_better=True)
    assert slower is not None
    assert 1 / (1 - slower.change) == pytest.approx(1 + found.change, rel=1e-9)


def test_figures_without_noise_may_change_by_the_whole_tolerance() -> None:
    assert not compare_values(100, 105, 0.05).is_regression
    assert compare_values(100, 106, 0.05).is_regression
    assert compare_values(0, 1, 0.05).is_regression
    assert not compare_values(0, 0, 0.05).is_regression
    assert compare_values(100, 50, 0.05).change == pytest.approx(-0.5)
