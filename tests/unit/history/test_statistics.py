"""Statistics of measurements against brute force."""

import math
import random
import statistics
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildsys.history.statistics import (
    Interval,
    hodges_lehmann,
    median,
    median_interval,
    signed_rank_bound,
)

FINITE = st.floats(-1e6, 1e6, allow_nan=False)
VALUES = st.lists(FINITE, min_size=1, max_size=30)
DISTINCT = st.lists(st.integers(-1000, 1000), min_size=1, max_size=9, unique_by=abs)


@given(VALUES)
def test_the_median_is_that_of_the_standard_library(values: list[float]) -> None:
    assert median(values) == statistics.median(values)


@given(VALUES)
def test_the_interval_holds_the_median_and_ends_at_values(values: list[float]) -> None:
    found = median_interval(values)
    assert (found is None) == (len(values) < 6)
    if found is not None:
        assert found.low <= found.median <= found.high
        assert {found.low, found.high} <= set(values)


@pytest.mark.parametrize(
    ("count", "rank"), [(6, 1), (8, 1), (9, 2), (10, 2), (20, 6), (25, 8), (30, 10), (40, 14)]
)
def test_ranks_of_the_interval_are_those_of_published_tables(count: int, rank: int) -> None:
    assert median_interval(range(1, count + 1)) == Interval(rank, (count + 1) / 2, count + 1 - rank)


def test_the_interval_covers_the_median_of_a_skewed_distribution() -> None:
    draw = random.Random(7)
    found = [median_interval([draw.expovariate(1) for _ in range(20)]) for _ in range(2000)]
    covered = sum(one is not None and one.low <= math.log(2) <= one.high for one in found)
    assert 0.95 <= covered / 2000 <= 0.975  # exactly 0.9586 for 20 values


@given(VALUES)
def test_hodges_lehmann_is_the_median_of_all_pairwise_averages(values: list[float]) -> None:
    pairs = [(a + b) / 2 for i, a in enumerate(values) for b in values[: i + 1]]
    assert hodges_lehmann(values) == pytest.approx(statistics.median(pairs))


def signed_rank_p(differences: list[int]) -> float:
    """Return the exact one-sided p-value by trying every pattern of signs."""
    ranks = {abs(d): i + 1 for i, d in enumerate(sorted(differences, key=abs))}
    seen = sum(ranks[abs(d)] for d in differences if d > 0)
    sums = [
        sum(rank for rank, positive in zip(ranks.values(), signs, strict=True) if positive)
        for signs in product((False, True), repeat=len(differences))
    ]
    return sum(one >= seen for one in sums) / len(sums)


@given(DISTINCT)
def test_the_bound_is_positive_exactly_if_the_test_rejects(differences: list[int]) -> None:
    bound = signed_rank_bound(differences)
    rejected = 0 not in differences and signed_rank_p(differences) <= 0.05
    if 0 not in differences:
        assert (bound is not None and bound > 0) == rejected


@pytest.mark.parametrize(
    ("count", "critical"),  # largest sum of ranks with P <= 0.05, from published tables
    [(5, 0), (6, 2), (7, 3), (8, 5), (9, 8), (10, 10), (12, 17), (15, 30), (20, 60), (25, 100)],
)
def test_critical_sums_are_those_of_published_tables(count: int, critical: int) -> None:
    # powers of three: all averages differ, so the rank of the bound can be read off
    differences = [float(3**power) for power in range(count)]
    averages = sorted((a + b) / 2 for i, a in enumerate(differences) for b in differences[i:])
    bound = signed_rank_bound(differences)
    assert bound is not None
    assert averages.index(bound) == critical


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0, 4.0]])
def test_too_few_differences_have_no_bound(values: list[float]) -> None:
    assert signed_rank_bound(values) is None


@pytest.mark.parametrize("values", [[], [1.0, math.nan, 2.0]])
def test_missing_and_nan_values_are_refused(values: list[float]) -> None:
    for function in (median, median_interval, hodges_lehmann, signed_rank_bound):
        with pytest.raises(ValueError, match=r"no values|NaN"):
            function(values)
