"""Rules of gates on simulated measurements."""

from __future__ import annotations

import math
import random

import pytest

from buildsys.history.gates import LOOKS, compare_history, compare_rounds, compare_values


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
    assert share_of_failures(20, 0.05) >= 0.95
    assert share_of_failures(20, 0.0) <= 0.05


def share_of_failures_with_looks(slower: float, trials: int = 200) -> float:
    draw, failed = random.Random(4), 0
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
            if not found.may_hide_one:
                break
        failed += found.is_regression
    return failed / trials


def test_looking_repeatedly_finds_a_slowdown_and_raises_no_more_false_alarms() -> None:
    assert share_of_failures_with_looks(0.05) >= 0.95
    assert share_of_failures_with_looks(0.0) <= 0.05


def test_a_change_below_half_the_tolerance_is_no_regression_however_certain() -> None:
    before = [2.0 + 0.001 * number for number in range(10)]
    found = compare_rounds(before, [b * 1.02 for b in before], 0.05, more_is_better=False)
    assert found.low is not None
    assert found.low > 0
    assert found.change == pytest.approx(0.02)
    assert not found.is_regression
    assert compare_rounds(
        before, [b * 1.03 for b in before], 0.05, more_is_better=False
    ).is_regression


def test_a_large_change_that_is_not_certain_is_no_regression() -> None:
    before, after = [2.0] * 6, [1.9, 2.6, 1.8, 2.7, 2.4, 1.9]
    found = compare_rounds(before, after, 0.05, more_is_better=False)
    assert found.low is not None
    assert found.low < 0
    assert not found.is_regression


def test_less_throughput_is_a_regression_and_more_is_none() -> None:
    before = [100.0 + number for number in range(8)]
    fewer = compare_rounds(before, [b / 1.1 for b in before], 0.05, more_is_better=True)
    assert fewer.change == pytest.approx(0.1)
    assert fewer.is_regression
    more = compare_rounds(before, [b * 1.1 for b in before], 0.05, more_is_better=True)
    assert more.change < 0
    assert not more.is_regression


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_figure_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not a positive number"):
        compare_rounds([1.0, value], [1.0, 1.0], 0.05, more_is_better=False)


def test_earlier_builds_decide_by_a_robust_score_and_a_size() -> None:
    earlier = [2.0, 2.01, 1.99, 2.02, 1.98, 2.0, 5.0]
    regressed = compare_history(earlier, [2.2], 0.05, more_is_better=False)
    assert regressed is not None
    assert regressed.change == pytest.approx(0.1)
    assert regressed.is_regression
    small = compare_history(earlier, [2.04], 0.05, more_is_better=False)
    assert small is not None
    assert not small.is_regression
    scattered = [1.5, 2.0, 2.6, 1.7, 2.2, 2.4]
    wide = compare_history(scattered, [2.4], 0.05, more_is_better=False)
    assert wide is not None
    assert not wide.is_regression


@pytest.mark.parametrize("earlier", [[], [2.0] * 4, [2.0, 2.0, 2.0, 2.0, math.nan]])
def test_too_few_earlier_builds_are_no_comparison(earlier: list[float]) -> None:
    assert compare_history(earlier, [2.0], 0.05, more_is_better=False) is None


def test_figures_without_noise_may_change_by_the_whole_tolerance() -> None:
    assert not compare_values(100, 105, 0.05).is_regression
    assert compare_values(100, 106, 0.05).is_regression
    assert compare_values(0, 1, 0.05).is_regression
    assert not compare_values(0, 0, 0.05).is_regression
    assert compare_values(100, 50, 0.05).change == pytest.approx(-0.5)
