"""Percentiles against numpy's, and summaries of samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildsys.stages.bench.latency import percentile, summarize, variation

latencies = st.lists(
    st.floats(min_value=0, max_value=1e9, allow_subnormal=False), min_size=1, max_size=200
)


@given(latencies, st.floats(min_value=0, max_value=100))
def test_percentile_equals_numpys_linear_method(samples: list[float], percent: float) -> None:
    expected = float(np.percentile(samples, percent, method="linear"))
    assert math.isclose(percentile(sorted(samples), percent), expected, rel_tol=1e-9, abs_tol=1e-9)


@given(latencies)
def test_percentiles_rise_and_stay_inside_the_samples(samples: list[float]) -> None:
    ascending = sorted(samples)
    found = [percentile(ascending, percent) for percent in (0, 50, 90, 95, 99, 100)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (ascending[0], ascending[-1])


def test_a_percentile_between_two_ranks_is_interpolated() -> None:
    assert percentile([10.0, 20.0, 30.0, 40.0], 90) == pytest.approx(37.0)


def test_no_samples_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


@given(st.lists(st.floats(min_value=0.01, max_value=1e6), min_size=2, max_size=50))
def test_variation_equals_numpys(samples: list[float]) -> None:
    assert math.isclose(
        variation(samples),
        float(np.std(samples, ddof=1) / np.mean(samples)),
        rel_tol=1e-6,
        abs_tol=1e-9,
    )


def test_variation_of_one_sample_is_zero() -> None:
    assert variation([3.0]) == 0.0


def test_a_summary_keeps_every_sample_in_ms_and_in_order() -> None:
    summary = summarize([3_000_000, 1_000_001, 2_000_000], batch=4)
    assert summary["samples_ms"] == [3.0, 1.000001, 2.0]
    assert (summary["count"], summary["min_ms"], summary["max_ms"]) == (3, 1.000001, 3.0)
    assert summary["p50_ms"] == 2.0


def test_throughput_is_the_batch_over_the_mean_latency() -> None:
    summary = summarize([10_000_000, 30_000_000], batch=8)
    assert summary["mean_ms"] == 20.0
    assert summary["throughput_per_s"] == pytest.approx(400.0)
