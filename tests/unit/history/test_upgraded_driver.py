"""Recorded builds before and after a new driver of the GPU."""

from dataclasses import replace

import pytest
from recorded_builds import MEASUREMENT, MakeBuild

from buildsys.errors import UsageError
from buildsys.history.database import History, digest_of
from buildsys.upgrade import verdicts
from buildsys.upgrade.driver import compare_drivers


def add(
    history: History, make_build: MakeBuild, target: str, driver: str, **fields: object
) -> None:
    stage, model, engine = target.split(":")
    environment = f'{{"device:gpu.driver": "{driver}"}}'
    p50_ms = float(str(fields.pop("p50_ms", 1.5)))
    measured = replace(MEASUREMENT, p50_ms=p50_ms, interval_ms=(p50_ms * 0.99, p50_ms * 1.01))
    place = {"target": target, "stage": stage, "model": model, "variant": engine}
    build = make_build(environment=digest_of(environment), **place, **fields)
    history.add(build, [measured] if stage == "bench" else [], [environment])


def test_engines_are_compared_under_the_two_newest_drivers(
    history: History, make_build: MakeBuild
) -> None:
    for driver, p50_ms in (("540", 9.0), ("550", 1.0), ("580", 1.2)):
        add(history, make_build, "bench:m:slow", driver, p50_ms=p50_ms)
        add(history, make_build, "bench:m:same", driver)
        add(history, make_build, "verify:m:wrong", driver, status="passed")
    add(history, make_build, "verify:m:wrong", "580", status="failed", reason="y differs")
    add(history, make_build, "verify:m:bad", "550", figures={"relative": 1e-6})
    add(history, make_build, "verify:m:bad", "580", figures={"relative": 1e-3})
    add(history, make_build, "bench:m:none", "none")
    names = ("slow", "same", "wrong", "bad", "none")
    upgrade = compare_drivers(history, [("m", name) for name in names])
    assert upgrade.title == "driver 550 → 580"
    assert upgrade.pins == []
    assert {change.engine: change.verdict for change in upgrade.engines} == {
        "slow": verdicts.SLOWER,
        "same": verdicts.UNCHANGED,
        "wrong": verdicts.WRONG,
        "bad": verdicts.LESS_PRECISE,
    }
    slow = upgrade.engines[0].figures["latency"]
    assert slow["change"] == pytest.approx(0.2)
    assert slow["low"] < 0.2 < slow["high"]


def test_one_driver_is_an_error(history: History, make_build: MakeBuild) -> None:
    add(history, make_build, "bench:m:e", "580")
    add(history, make_build, "bench:m:e", "550", machine_id="another")
    with pytest.raises(UsageError, match="builds with 1 driver on this machine"):
        compare_drivers(history, [("m", "e")])
