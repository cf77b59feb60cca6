"""Rules of gates on simulated measurements."""

import math
import random

import pytest

from buildsys.history.statistics import LOOKS, compare_rounds, compare_values


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
                before[:count], after[:count], 0.05, more_is_better=False, confidence=confidence
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


def test_figures_without_noise_may_change_by_the_whole_tolerance() -> None:
    assert not compare_values(100, 105, 0.05).is_regression
    assert compare_values(100, 106, 0.05).is_regression
    assert compare_values(0, 1, 0.05).is_regression
    assert not compare_values(0, 0, 0.05).is_regression
    assert compare_values(100, 50, 0.05).change == pytest.approx(-0.5)
