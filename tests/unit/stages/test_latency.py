"""Summaries of samples, and their percentiles."""

import random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildsys.backends.measurement import Samples
from buildsys.stages.bench.cold_start import count_warm_up
from buildsys.stages.bench.latency import (
    disturbances,
    mark_noisy,
    mark_noisy_starts,
    noise,
    summarize,
)
from buildsys.stages.bench.result import BenchCase, ColdStart, ContenderResult
from buildsys.stages.bench.stage import _speedup


def summary_of(*samples_ns: int, batch: int = 1) -> ContenderResult:
    return summarize([Samples(list(samples_ns), sum(samples_ns))], batch)


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
    block = Samples([4_000_000], 4_000_000, [1_000_000, 3_000_000], 5_000_000)
    summary = summarize([block], batch=2)
    assert summary["throughput_per_s"] == pytest.approx(500.0)
    assert summary["gpu"]["mean_ms"] == 2.0
    assert summary["gpu"]["throughput_per_s"] == pytest.approx(800.0)


MS = 1_000_000
LIMITS = {"interval": 0.05, "other_load": 0.1, "throttling": 0.0}


def blocks(medians_ms: list[float], spread: float = 0.3, calls: int = 50) -> list[Samples]:
    """Return blocks of 100 ms and more, with skewed samples around each median."""
    draw = random.Random(1)
    found = []
    for median_ms in medians_ms:
        taken = [int(median_ms * MS * (1 + spread * draw.random() ** 4)) for _ in range(calls)]
        found.append(Samples(taken, sum(taken)))
    return found


def test_the_interval_is_over_blocks_and_not_over_samples() -> None:
    draw = random.Random(2)
    medians = [4.0 * draw.uniform(0.9, 1.1) for _ in range(30)]  # the machine varies by the block
    low, high = summarize(blocks(medians), 1)["p50_interval_ms"] or (0.0, 0.0)
    assert 0.1 < high - low < 0.5
    one_block = [Samples.joined(blocks(medians))]
    assert summarize(one_block, 1)["p50_interval_ms"] is not None  # cut into pieces of 100 ms
    assert summarize(blocks(medians[:5], calls=30), 1)["p50_interval_ms"] is None


@given(st.lists(st.floats(1, 1000), min_size=6, max_size=30))
def test_the_interval_contains_the_median(medians_ms: list[float]) -> None:
    """Slow blocks have fewer samples, so the median of all is below that of the blocks."""
    calls = [max(1, round(200 / median)) for median in medians_ms]
    measured = [blocks([m], calls=n)[0] for m, n in zip(medians_ms, calls, strict=True)]
    figures = summarize(measured, 1)
    assert figures["p50_interval_ms"] is not None
    low, high = figures["p50_interval_ms"]
    assert low <= figures["p50_ms"] + 1e-6
    assert figures["p50_ms"] - 1e-6 <= high


def test_slow_inferences_of_one_block_are_pieces() -> None:
    block = Samples([150 * MS + number for number in range(8)], 1200 * MS)
    assert summarize([block], 1)["p50_interval_ms"] == [150.0, 150.000007]


def case_of(**contenders: list[Samples]) -> BenchCase:
    found = {name: summarize(taken, 1) for name, taken in contenders.items()}
    return cast(BenchCase, {"contenders": found, "others_share": 0.01})


def reasons(case: BenchCase, **limits: Any) -> list[str]:
    return list(noise("opt", case, {**LIMITS, **limits}))


def test_a_steady_measurement_has_no_noise() -> None:
    assert reasons(case_of(engine=blocks([4.0] * 30), torch=blocks([9.0] * 30))) == []


def test_rare_slow_inferences_are_no_noise() -> None:
    interrupted = blocks([4.0] * 30)
    for block in interrupted[::5]:
        block.wall_ns[7] = 400 * MS
    case = case_of(engine=interrupted)
    assert case["contenders"]["engine"]["variation"] > 1
    assert reasons(case) == []


def test_a_median_that_is_not_known_well_is_noise() -> None:
    drifting = blocks([4.0 + 0.1 * number for number in range(30)])
    (reason,) = reasons(case_of(engine=drifting, torch=blocks([9.0] * 30)))
    assert reason.startswith("engine, case opt: the median is only known within ±")
    assert reasons(case_of(engine=drifting), interval=None) == []


def test_fifteen_scattered_samples_are_noise() -> None:
    torch = Samples([int(0.45 * MS), *([30 * MS, 1 * MS, 55 * MS] * 4), 60 * MS, 2 * MS], 300 * MS)
    case = case_of(engine=[Samples([30_000] * 15, 450_000)], torch=[torch])
    (reason,) = reasons(case)
    assert reason.startswith("torch, case opt: the median is only known")


def test_an_uncertain_but_certainly_slower_baseline_does_not_make_a_case_noisy() -> None:
    case = case_of(engine=blocks([4.0] * 30), torch=blocks([9.0, 14.0] * 15))
    mark_noisy(case["contenders"], LIMITS)
    assert reasons(case) == []
    assert case["contenders"]["torch"]["noisy"].startswith("the median is only known within ±")
    assert "noisy" not in case["contenders"]["engine"]


@pytest.mark.parametrize("limits", [None, {**LIMITS, "interval": None}, {**LIMITS, "interval": 1}])
@pytest.mark.parametrize("noisy", ["engine", "torch"])
@pytest.mark.parametrize("unsteady", [[900.0, 1400.0] * 15, [4.0] * 2])  # scattered, too brief
def test_no_manifest_makes_a_speed_up_of_an_unsteady_median(
    limits: Any, noisy: str, unsteady: list[float]
) -> None:
    steady = {"engine": blocks([4.0] * 30), "torch": blocks([9.0] * 30)}
    case = case_of(**{**steady, noisy: blocks(unsteady)})
    mark_noisy(case["contenders"], limits)
    assert [name for name, one in case["contenders"].items() if "noisy" in one] == [noisy]
    assert _speedup(case["contenders"]) is None
    case = case_of(**steady)
    mark_noisy(case["contenders"], limits)
    assert _speedup(case["contenders"]) == pytest.approx(2.25, rel=1e-6)


def test_what_disturbs_a_case_makes_all_its_contenders_noisy() -> None:
    case = case_of(engine=blocks([4.0] * 30), torch=blocks([9.0] * 30))
    case["others_share"] = 0.4
    (disturbance,) = disturbances("opt", case, LIMITS)
    mark_noisy(case["contenders"], LIMITS, disturbance)
    assert {one["noisy"] for one in case["contenders"].values()} == {disturbance}
    assert _speedup(case["contenders"]) is None


def test_a_narrower_limit_of_the_manifest_holds_for_comparisons() -> None:
    drifting = blocks([4.0 + 0.02 * number for number in range(30)])
    case = case_of(engine=drifting)
    mark_noisy(case["contenders"], None)
    assert "noisy" not in case["contenders"]["engine"]
    mark_noisy(case["contenders"], {**LIMITS, "interval": 0.01})
    assert "noisy" in case["contenders"]["engine"]


@pytest.mark.parametrize(
    ("engine", "torch"),
    [
        ([4.0] * 30, [3.0, 9.0] * 15),  # perhaps faster
        ([20.0] * 30, [9.0, 14.0] * 15),  # faster
        ([4.0] * 3, [30.0, 9.0, 55.0]),  # too few blocks for intervals
    ],
)
def test_an_uncertain_baseline_that_is_not_certainly_slower_makes_a_case_noisy(
    engine: list[float], torch: list[float]
) -> None:
    case = case_of(engine=blocks(engine, calls=20), torch=blocks(torch, calls=20))
    assert any(reason.startswith("torch, case opt") for reason in reasons(case))


def test_a_baseline_has_to_be_slower_by_the_clocks_of_host_and_gpu() -> None:
    case = case_of(engine=blocks([4.0] * 30), torch=blocks([9.0, 14.0] * 15))
    for contender in case["contenders"].values():
        contender["gpu"] = cast(Any, {**contender})
    assert not any("torch" in reason for reason in reasons(case))
    case["contenders"]["engine"]["gpu"]["p50_interval_ms"] = [4.0, 20.0]
    assert any("torch" in reason for reason in reasons(case))


def test_other_load_unequal_counts_and_throttling_are_noise() -> None:
    case = case_of(engine=blocks([4.0] * 30), torch=blocks([9.0] * 15))
    case["others_share"], case["gpu"] = 0.4, {"throttle": {"power cap": 0.25}}
    assert reasons(case) == [
        "case opt: the contenders were timed in 15 to 30 blocks",
        "case opt: the GPU was throttled: power cap in 25 % of the readings",
        "case opt: other processes used 40 % of the processors",
    ]
    assert len(reasons(case, other_load=0.5, throttling=0.3)) == 1
    assert len(reasons(case, other_load=None, throttling=None)) == 1


@pytest.mark.parametrize(
    ("calls_ms", "count"),
    [
        ([9] + [2] * 9, 1),
        ([2] * 10, 0),
        ([9, 2, 5, 5, 3, 2, 2, 2.1, 2, 2], 5),  # a single fast call is not steady
        ([2, 2, 2, 8, 2, 2, 2, 2], 0),
    ],
)
def test_the_warm_up_ends_with_the_first_calls_as_fast_as_later_ones(
    calls_ms: list[float], count: int
) -> None:
    assert count_warm_up([int(1e6 * call) for call in calls_ms]) == count


@pytest.mark.parametrize(
    ("load_ms", "doubt"),
    [
        ([100.0, 98.0, 104.0], None),
        ([100.0, 98.0, 107.0], "the median is only known within ±7.0 %"),
        ([100.0] * 9 + [300.0], None),  # the interval of many processes has no outliers
        ([100.0], "it was timed too briefly to know the interval of its median"),
    ],
)
def test_fresh_processes_that_differ_are_noisy(load_ms: list[float], doubt: str | None) -> None:
    figures: ColdStart = {"load_ms": load_ms, "imports_ms": [5.0, 5.0], "warmup_calls": [1, 9]}
    mark_noisy_starts(figures)
    assert figures.get("noisy", {}) == ({"load_ms": doubt} if doubt else {})
