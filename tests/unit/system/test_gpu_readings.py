"""Figures from GPU readings: spans, throttle reasons, warnings."""

from typing import Any

from buildsys.system.devices import Readings, sampled, throttle_shares, throttled

IDLE, CHOSEN, POWER, HOT = 0x1, 0x2, 0x4, 0x40
NAMES = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "throttle_bits")


def reading(*values: float | None) -> dict[str, Any]:
    return dict(zip(NAMES, values, strict=True))


def test_readings_become_spans_and_shares() -> None:
    taken = [
        reading(1980, 3201, 300.0, 50, IDLE),
        reading(1500, 3201, 700.0, 80, POWER | HOT),
        reading(1600, 3201, 690.0, 79, POWER | CHOSEN),
        reading(None, 3201, None, 60, 0),
    ]
    assert Readings(taken).figures() == {
        "readings": 4,
        "sm_clock_mhz": {"min": 1500, "median": 1600, "max": 1980},
        "memory_clock_mhz": {"min": 3201, "median": 3201, "max": 3201},
        "power_w": {"min": 300.0, "median": 690.0, "max": 700.0},
        "temperature_c": {"min": 50, "median": 69.5, "max": 80},
        "throttle": {"power cap": 0.5, "temperature (hardware)": 0.25},
    }


def test_a_gpu_without_readings_has_no_spans() -> None:
    assert Readings([reading(*[None] * 5)]).figures() == {"readings": 1, "throttle": {}}
    assert Readings(missing="NVML answers with error 3").figures() == {
        "missing": "NVML answers with error 3"
    }


def test_an_unknown_throttle_reason_is_shown_by_number() -> None:
    assert throttle_shares([0x1000]) == {"reason 0x1000": 1.0}
    assert throttle_shares([None, None]) == {}
    assert throttle_shares([IDLE, CHOSEN, IDLE | CHOSEN]) == {}


def test_a_throttled_run_is_marked() -> None:
    shares = {"power cap": 0.25, "temperature (hardware)": 1.0}
    assert list(throttled("opt", {"throttle": shares})) == [
        "case opt: the GPU was throttled: power cap in 25 % of the readings,"
        " temperature (hardware) in 100 % of the readings"
    ]
    assert list(throttled("max", {"throttle": {}})) == []
    assert list(throttled("min", {"missing": "no NVML"})) == []
    assert list(throttled("opt", {"throttle": {"power cap": 0.25}}, 0.3)) == []


def test_without_nvml_there_is_a_reason_and_no_error() -> None:
    with sampled("0000:ff:1f.7", every_s=0.01) as readings:
        pass
    assert readings.taken == []
    assert readings.figures()["missing"]
