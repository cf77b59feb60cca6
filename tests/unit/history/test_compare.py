from dataclasses import replace
from typing import Any

import pytest
from recorded_builds import MEASUREMENT, MakeBuild

from buildsys.history.builds import Build, Measurement
from buildsys.history.compare import (
    FASTER,
    INCOMPARABLE,
    SAME,
    SLOWER,
    FigureChange,
    builds_at,
    compare_figures,
    compare_latencies,
    machine_differences,
)
from buildsys.history.database import History, digest_of

ENVIRONMENT = '{"device:cpu.model": "A"}'


def measured(
    history: History,
    make_build: MakeBuild,
    *measurements: Measurement,
    environment: str = ENVIRONMENT,
    **fields: Any,
) -> Build:
    build = make_build(environment=digest_of(environment), **fields)
    history.add(build, measurements, [environment])
    return build


def at(low: float, p50_ms: float, high: float) -> Measurement:
    return replace(MEASUREMENT, p50_ms=p50_ms, interval_ms=(low, high))


def test_the_state_at_a_moment_has_the_last_complete_builds(make_build: MakeBuild) -> None:
    engine, bench = make_build(target="engine:m:e"), make_build(target="bench:m:e")
    failed = make_build(target="engine:m:e", status="failed")
    noisy = make_build(target="bench:m:e", status="noisy")
    elsewhere = make_build(target="verify:m:e", machine_id="bbbb", position=engine.position)
    builds = [elsewhere, noisy, failed, bench, engine]
    assert builds_at(builds, bench) == {"engine:m:e": engine, "bench:m:e": bench}
    assert builds_at(builds, noisy) == {"engine:m:e": engine, "bench:m:e": noisy}


def test_figures_of_both_builds_are_compared(make_build: MakeBuild) -> None:
    first = make_build(target="engine:m:e", figures={"bytes": 10, "build_seconds": 2.0})
    second = make_build(target="engine:m:e", figures={"bytes": 10, "device_memory_bytes": 4})
    assert compare_figures([(first, second)]) == [FigureChange("engine:m:e", "bytes", 10, 10)]


@pytest.mark.parametrize(
    ("second", "verdict"),
    [(at(1.2, 1.25, 1.3), SLOWER), (at(0.74, 0.75, 0.76), FASTER), (at(1.02, 1.06, 1.1), SAME)],
)
def test_a_latency_changed_if_the_intervals_do_not_overlap(
    history: History, make_build: MakeBuild, second: Measurement, verdict: str
) -> None:
    builds = [measured(history, make_build, one) for one in (at(0.96, 1.0, 1.04), second)]
    (change,) = compare_latencies(history, *builds)
    low, high = second.interval_ms or (0.0, 0.0)
    assert (change.verdict, change.ratio) == (verdict, second.p50_ms)
    assert change.ratio_interval == (low / 1.04, high / 0.96)  # of opposite ends


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        (None, "a median has no interval"),
        ((1.5, 2.0), "a measurement is noisy"),
        ((2.0, 2.2), "a measurement is noisy"),
    ],
)
def test_a_median_that_is_not_steady_has_no_ratio(
    history: History, make_build: MakeBuild, ends: tuple[float, float] | None, reason: str
) -> None:
    unsteady = replace(MEASUREMENT, p50_ms=2.0, interval_ms=ends)
    builds = [measured(history, make_build, one) for one in (at(0.96, 1.0, 1.04), unsteady)]
    (change,) = compare_latencies(history, *builds)
    assert (change.verdict, change.reason) == (INCOMPARABLE, reason)
    assert (change.ratio, change.ratio_interval) == (None, None)


def test_other_hardware_noise_and_sizes_are_not_comparable(
    history: History, make_build: MakeBuild
) -> None:
    steady = at(1.45, 1.5, 1.55)
    base = measured(history, make_build, steady)
    other_cpu = measured(history, make_build, steady, environment='{"device:cpu.model": "B"}')
    unknown = measured(history, make_build, steady, environment="{}")
    noisy = measured(history, make_build, steady, figures={"noisy": ["load"]})
    larger = measured(history, make_build, replace(steady, dims={"batch": 8}))
    found = [
        compare_latencies(history, base, one)[0] for one in (other_cpu, unknown, noisy, larger)
    ]
    assert {one.verdict for one in found} == {INCOMPARABLE}
    assert [one.reason for one in found] == [
        "cpu.model is A and B",
        "the environment of a build is not recorded",
        "a measurement is noisy",
        "sizes are batch=4 and batch=8",
    ]


def test_baselines_and_missing_cases_are_not_compared(
    history: History, make_build: MakeBuild
) -> None:
    torch, other = replace(MEASUREMENT, contender="torch"), replace(MEASUREMENT, case="max")
    builds = [measured(history, make_build, torch, one) for one in (MEASUREMENT, other)]
    assert compare_latencies(history, *builds) == []


def test_only_hardware_makes_environments_incomparable() -> None:
    base = {"device:cpu.model": "A", "device:gpu.driver": "570", "tool:onnxruntime": "1.22"}
    assert machine_differences(base, {**base, "device:gpu.driver": "580"}) == ()
    assert machine_differences(base, {"device:gpu.name": "L4"}) == ()
    assert machine_differences(base, {**base, "device:cpu.model": "B"}) == ("cpu.model is A and B",)
