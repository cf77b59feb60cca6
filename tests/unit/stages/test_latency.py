"""Summaries of samples, and their percentiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildsys.backends.measurement.contenders import Samples
from buildsys.report.results.bench import ContenderResult
from buildsys.stages.bench.latency import summarize


def summary_of(*samples_ns: int, batch: int = 1) -> ContenderResult:
    return summarize(Samples(list(samples_ns), sum(samples_ns)), batch)


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=200))
def test_percentiles_rise_and_stay_inside_the_samples(samples_ns: list[int]) -> None:
    summary = summary_of(*samples_ns)
    found = [
        summary["min_ms"], summary["p50_ms"], summary["p90_ms"], summary["p95_ms"],
        summary["p99_ms"], summary["max_ms"],
    ]  # fmt: skip
    assert found == sorted(found)


def test_a_percentile_between_two_ranks_is_interpolated() -> None:
    summary = summary_of(10_000_000, 20_000_000, 30_000_000, 40_000_000)
    assert summary["p90_ms"] == pytest.approx(37.0)


def test_the_variation_is_the_deviation_over_the_mean() -> None:
    assert summary_of(3_000_000)["variation"] == 0.0
    assert summary_of(0, 0)["variation"] == 0.0
    assert summary_of(1_000_000, 3_000_000)["variation"] == pytest.approx(2**0.5 / 2)


def test_a_summary_keeps_every_sample_in_ms_and_in_order() -> None:
    summary = summary_of(3_000_000, 1_000_001, 2_000_000, batch=4)
    assert summary["samples_ms"] == [3.0, 1.000001, 2.0]
    assert (summary["count"], summary["min_ms"], summary["max_ms"]) == (3, 1.000001, 3.0)
    assert summary["p50_ms"] == 2.0


def test_throughput_is_the_batch_over_the_mean_latency() -> None:
    summary = summary_of(10_000_000, 30_000_000, batch=8)
    assert summary["mean_ms"] == 20.0
    assert summary["throughput_per_s"] == pytest.approx(400.0)


def test_a_gpu_has_figures_by_both_clocks() -> None:
    summary = summarize(Samples([4_000_000], 4_000_000, [1_000_000, 3_000_000], 5_000_000), batch=2)
    assert summary["throughput_per_s"] == pytest.approx(500.0)
    assert summary["gpu"]["mean_ms"] == 2.0
    assert summary["gpu"]["throughput_per_s"] == pytest.approx(800.0)
