"""Clipping ranges from histograms, independent of the order of batches."""

from __future__ import annotations

import numpy as np
import pytest

from buildsys.stages.calibrate.ranges import BINS, Magnitudes


def magnitudes(*batches: np.ndarray) -> Magnitudes:
    found = Magnitudes()
    for batch in batches:
        found.add(batch.astype(np.float32))
    return found


def normal(count: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(count)


def test_extremes_cover_all_batches() -> None:
    found = magnitudes(np.array([1.0, -3.0]), np.array([2.0]))
    assert (found.low, found.high, found.largest) == (-3.0, 2.0, 3.0)
    assert found.percentile(100.0) == 3.0


def test_the_order_of_batches_does_not_matter() -> None:
    small, large = normal(50_000), normal(50_000, scale=300.0, seed=1)
    one, other = magnitudes(small, large), magnitudes(large, small)
    assert one.span == other.span
    assert np.array_equal(one.counts, other.counts)
    assert one.counts.sum() == 100_000
    assert one.entropy() == other.entropy()


def test_outliers_are_cut() -> None:
    values = normal(200_000)
    values[0] = 100.0
    found = magnitudes(values)
    assert 3.0 < found.entropy() < 6.0
    assert found.percentile(99.99) == pytest.approx(
        np.quantile(np.abs(values), 0.9999), abs=2 * found.span / BINS
    )


def test_a_uniform_tensor_is_not_cut() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 500_000)
    assert magnitudes(values).entropy() > 0.97


def test_many_exact_zeros_do_not_pull_the_range_in() -> None:
    values = np.maximum(normal(400_000), 0.0)
    assert magnitudes(values).entropy() == pytest.approx(
        magnitudes(values[values > 0]).entropy(), rel=0.2
    )


def test_a_tensor_with_few_values_is_not_cut() -> None:
    values = normal(1000)
    found = magnitudes(values)
    assert found.entropy() == found.largest


def test_a_percentile_is_the_upper_edge_of_its_bin() -> None:
    found = Magnitudes()
    found.add(np.array([0.5] * 99 + [4.0]))
    assert 0.5 < found.percentile(50.0) <= 0.5 + 4.0 / BINS
