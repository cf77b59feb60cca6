"""The load stage: arrivals, percentiles, the search for the capacity and what is said about it."""

import heapq
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buildsys.errors import StageError
from buildsys.report.html.figures import curves
from buildsys.report.result_files import Result
from buildsys.stages.load.capacity import SHARES, explore, find_capacity, p99_interval
from buildsys.stages.load.open_loop import OpenLoop, check_sender, repeated
from buildsys.stages.load.report import history_figures, key_figure, table
from buildsys.stages.load.result import LoadPoint, LoadResult, LoadSetting
from buildsys.system.energy import energy_counter


def queued(rate: float, instances: int, service_ms: float, number: int = 1000) -> LoadPoint:
    """Simulate requests at random times that idle instances serve in order."""
    due = np.cumsum(np.random.default_rng(0).exponential(1000 / rate, number))
    free, latencies = [0.0] * instances, []
    for arrival in due:
        end = max(heapq.heappop(free), arrival) + service_ms
        heapq.heappush(free, end)
        latencies.append(end - arrival)
    return point(rate, float(np.percentile(latencies, 99)), p99_interval(latencies))


def point(rate: float, p99_ms: float, interval: list[float] | None = None) -> LoadPoint:
    return {
        "rate_per_s": rate, "requests": 1000, "served": 1000, "served_per_s": rate, "p50_ms": 5.0,
        "p99_ms": p99_ms, "p99_interval_ms": interval or [0.9 * p99_ms, 1.1 * p99_ms],
        "service_ms": 5.0, "lateness_ms": None, "is_overload": False, "joules": None,
    }  # fmt: skip


@pytest.mark.parametrize(("instances", "limit_ms"), [(1, 20.0), (4, 12.0)])
def test_a_few_rates_find_the_capacity_of_a_queue(instances: int, limit_ms: float) -> None:
    most = instances / 0.004
    true, high = 0.0, 1.1 * most
    for _ in range(8):
        middle = (true + high) / 2
        is_within = queued(middle, instances, 4.0)["p99_ms"] <= limit_ms
        true, high = (middle, high) if is_within else (true, middle)
    points, is_cut = explore(
        lambda rate: queued(rate, instances, 4.0), [share * most for share in SHARES], limit_ms
    )
    capacity = find_capacity(points, limit_ms)
    assert not is_cut
    assert len(points) <= 9
    assert capacity.rate_per_s == pytest.approx(true, rel=0.04)
    assert capacity.low <= true <= (capacity.high or most)


def test_a_disturbance_at_a_low_rate_does_not_end_the_search() -> None:
    stalled = {25.0: point(25.0, 300.0, [6.0, 400.0])}
    rates = [25.0, 50.0, 70.0, 90.0]
    points, _ = explore(
        lambda rate: stalled.get(rate) or point(rate, 6.0 if rate < 80 else 100.0), rates, 20.0
    )
    assert 70.0 < find_capacity(points, 20.0).rate_per_s < 90.0


def test_the_ends_of_the_search_are_no_capacity() -> None:
    fast = [point(10.0, 1.0), point(20.0, 2.0)]
    assert find_capacity(fast, 5.0)[:4] == (20.0, 20.0, None, True)
    slow = [point(5.0, 30.0), point(10.0, 30.0)]
    assert find_capacity(slow, 5.0)[:4] == (0.0, 0.0, 5.0, False)

    def late(rate: float) -> LoadPoint:
        if rate > 10:
            raise TimeoutError
        return point(rate, 1.0)

    assert explore(late, [10.0, 20.0], 5.0) == ([point(10.0, 1.0)], True)


def test_the_interval_of_a_percentile_needs_requests_and_counts_their_dependence() -> None:
    assert p99_interval([1.0] * 199) is None
    generator = np.random.default_rng(1)
    alone = 10 + generator.exponential(1.0, 2000)
    ends = p99_interval(alone)
    assert ends
    assert ends[0] < 10 + np.log(100) < ends[1]
    stalled = alone.copy()
    stalled[700:740] += 50  # one stall of many requests
    wide = p99_interval(stalled)
    assert wide
    assert wide[0] < 20 < 55 < wide[1]


def test_latencies_count_from_the_scheduled_time() -> None:
    calls = count()

    def call() -> None:
        time.sleep(0.2 if next(calls) == 20 else 0.001)

    load = OpenLoop(call, 1, 1000.0)
    measured = load.measure(200.0, 0.5)
    load.close()
    assert measured["requests"] == measured["served"] == 100
    assert measured["service_ms"] < 50
    # a loop of calls would see a single slow one of 100; 40 more arrive during the stall
    assert measured["p99_ms"] > 150
    assert measured["p50_ms"] > 1


def test_an_overload_ends_and_is_beyond_the_limit() -> None:
    load = OpenLoop(lambda: time.sleep(0.02), 2, 30.0)
    begin = time.monotonic()
    measured = load.measure(1000.0, 0.5)
    load.close()
    assert measured["is_overload"]
    assert measured["p99_ms"] > 30.0
    assert measured["served"] < 100 < measured["requests"] == 500
    assert time.monotonic() - begin < 5


def test_instances_work_at_the_same_time() -> None:
    load = OpenLoop(lambda: time.sleep(0.05), 4, 30.0)
    per_s = load.saturate(0.3)
    load.close()
    assert 25 < per_s < 81


def test_a_rate_that_cannot_be_sent_is_one_sentence() -> None:
    with pytest.raises(StageError, match=r"cannot send 100,000,000 requests per second: it sent"):
        check_sender(1e8, 2)


def test_inputs_are_repeated_along_the_batch() -> None:
    inputs = {"x": np.arange(6).reshape(2, 3), "y": np.zeros((1, 2)), "k": np.ones(2)}
    larger = repeated(inputs, {"x": [0], "y": [1], "k": []}, 5)
    assert larger["x"].tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert larger["y"].shape == (1, 5)
    assert repeated(inputs, {"x": [0]}, 1)["x"].tolist() == [[0, 1, 2]]
    assert larger["k"] is inputs["k"]


def test_energy_is_read_from_the_packages_and_never_estimated(tmp_path: Path) -> None:
    with energy_counter(folder=tmp_path / "none") as counter:
        assert counter.source == "unavailable: this machine has no RAPL counters"
        assert counter.start()() is None
    zones = {"intel-rapl:0": 9_000_000, "intel-rapl:1": 1_000_000, "intel-rapl:0:0": 5}
    for zone, energy in zones.items():
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "energy_uj").write_text(f"{energy}\n")
        (tmp_path / zone / "max_energy_range_uj").write_text("10000000\n")
    with energy_counter(folder=tmp_path) as counter:
        taken = counter.start()
        (tmp_path / "intel-rapl:0/energy_uj").write_text("500000\n")  # it has wrapped around
        (tmp_path / "intel-rapl:1/energy_uj").write_text("3000000\n")
        assert taken() == pytest.approx(1.5 + 2.0)
    (tmp_path / "intel-rapl:1/energy_uj").unlink()
    with energy_counter(folder=tmp_path) as counter:
        assert counter.source.startswith("unavailable: RAPL's counters cannot be read")
    with energy_counter("no GPU") as counter:
        assert counter.source.startswith("unavailable: ")


def result(**best: Any) -> Result[LoadResult]:
    setting: LoadSetting = {
        "batch": 4, "instances": 2, "threads": 1, "streams": None, "max_per_s": 50.0,
        "points": [point(10.0, 12.0), point(40.0, 18.0), point(45.0, 1e4)], "capacity_per_s": 40.5,
        "capacity_interval_per_s": [40.0, None], "is_least": False, "joules": 8.0, **best,
    }  # type: ignore[typeddict-item]  # fmt: skip
    other: LoadSetting = {
        "batch": 8, "instances": 1, "threads": 1, "streams": None, "problem": "x does not fit",
    }  # fmt: skip
    content: LoadResult = {
        "settings": [setting, other], "p99_limit_ms": 20.0, "case": "opt", "energy": "RAPL",
    }  # fmt: skip
    return Result("load:m:e", "passed", content, "", "", "load/e.json")


def test_the_report_has_the_best_setting_and_its_curve() -> None:
    listed = table([result()])
    assert [row[1:] for row in listed.rows] == [
        ("4", "2", "1", "—", "200", "162", "160", "—", "2.00", ""),
        ("8", "1", "1", "—", *["—"] * 5, "x does not fit"),
    ]
    best = "162/s with p99 < 20 ms: batch 4, 2 instances, 1 thread"
    assert key_figure(result().content) == best
    assert history_figures(result().content)["capacity_per_s"] == 162.0
    (chart,) = listed.charts
    ((name, curve),) = chart.curves.items()
    assert name == "batch 4, 2 instances, 1 thread"
    assert [dot.x for dot in curve] == [40.0, 160.0, 180.0]
    svg = curves(chart)
    assert svg.count("<circle") == 3
    assert "40/s: p50" not in svg  # in items, as the axis
    assert "160/s: p50 5.00 ms, p99 18.0 ms (16.2 to 19.8)" in svg
    assert 'class="mark"' in svg


def test_doubts_and_ends_are_visible() -> None:
    noisy = result(noisy="other processes used 50 % of the processors", is_least=True)
    assert table([noisy]).rows[0][-1] == "other processes used 50 % of the processors"
    assert key_figure(noisy.content).startswith("noisy: 162+/s with ")
    assert key_figure(result(capacity_per_s=0.0).content) == "no setting has p99 < 20 ms"
