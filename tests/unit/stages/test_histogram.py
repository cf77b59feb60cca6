"""Clipping ranges from histograms, independent of the order of batches."""

import numpy as np
import pytest

from buildsys.stages.calibrate.ranges import BINS, Magnitudes


def magnitudes(*batches: np.ndarray) -> Magnitudes:
    tensor = Magnitudes()
    for batch in batches:
        tensor.add(batch.astype(np.float32))
    return tensor


def normal(count: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(count)


def test_extremes_cover_all_batches() -> None:
    tensor = magnitudes(np.array([1.0, -3.0]), np.array([2.0]))
    assert (tensor.low, tensor.high, tensor.largest) == (-3.0, 2.0, 3.0)
    assert tensor.percentile(100.0) == 3.0


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
    tensor = magnitudes(values)
    assert 3.0 < tensor.entropy() < 6.0
    assert tensor.percentile(99.99) == pytest.approx(
        np.quantile(np.abs(values), 0.9999), abs=2 * tensor.span / BINS
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
    tensor = magnitudes(values)
    assert tensor.entropy() == tensor.largest


def test_a_percentile_is_the_upper_edge_of_its_bin() -> None:
    tensor = Magnitudes()
    tensor.add(np.array([0.5] * 99 + [4.0]))
    assert 0.5 < tensor.percentile(50.0) <= 0.5 + 4.0 / BINS
