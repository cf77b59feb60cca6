"""Verdicts on engines from the results of both sides."""

import json
from pathlib import Path
from typing import Any

import pytest

from buildsys.upgrade import verdicts
from buildsys.upgrade.sides import Side
from buildsys.upgrade.verdicts import (
    EngineChange,
    compare_ends,
    compare_errors,
    compare_results,
    compare_timings,
    needs_more_rounds,
)

TARGETS = ("export:m", "engine:m:e", "verify:m:e")


def side(folder: Path, title: str, *statuses: str) -> Side:
    ended = zip(TARGETS, statuses or ("passed",) * 3, strict=True)
    results = {name: {"status": status, "reason": "why; details: f.json"} for name, status in ended}
    return Side(title, Path("python"), folder / title, ends=results)


def write_results(place: Side, *, error: float, size: int, int8: int) -> None:
    cases = {"opt": {"y": {"relative": error, "passed": True}}}
    files = {"engine.onnx": {"bytes": size, "sha256": "0" * 64}}
    layers = {"int8": int8, "all": 8}
    for name, stage, fields in (
        ("verify/e.json", "verify", {"cases": cases}),
        ("engine/e/engine.json", "engine", {"files": files, "int8_layers": layers}),
    ):
        file = place.build / "m" / name
        file.parent.mkdir(parents=True)
        document = {"target": f"{stage}:m:e", "status": "passed", **fields}
        file.write_text(json.dumps(document))


def judged(tmp_path: Path, old: dict[str, Any], new: dict[str, Any], **options: Any) -> list[str]:
    sides = side(tmp_path, "old"), side(tmp_path, "new")
    for place, figures in zip(sides, (old, new), strict=True):
        write_results(place, **{"error": 1e-6, "size": 100, "int8": 8, **figures})
    change = EngineChange("m", "e")
    differ = compare_results(change, *sides, options.get("checked"), 0.05)
    assert differ == ("size" in new or "checked" in options)
    return change.verdicts


@pytest.mark.parametrize(
    ("old", "new", "verdict", "why"),
    [
        ("passed", "passed", verdicts.UNCHANGED, []),
        ("restored", "failed", verdicts.WRONG, ["verify:m:e: why"]),
        ("passed", "unavailable", verdicts.UNAVAILABLE, ["verify:m:e: why"]),
        ("passed", "not-run", verdicts.WRONG, ["verify:m:e: why"]),
        ("failed", "passed", verdicts.INCOMPARABLE, ["before the upgrade, verify:m:e: why"]),
        ("unavailable", "failed", verdicts.INCOMPARABLE, ["before the upgrade, verify:m:e: why"]),
    ],
)
def test_an_engine_is_wrong_if_a_check_fails_that_passed_before(
    tmp_path: Path, old: str, new: str, verdict: str, why: list[str]
) -> None:
    change = EngineChange("m", "e")
    sides = [side(tmp_path, "side", "passed", "passed", status) for status in (old, new)]
    assert compare_ends(change, *sides, TARGETS) == (verdict == verdicts.UNCHANGED)
    assert (change.verdict, change.why) == (verdict, why)


def test_the_first_failure_is_named_not_what_it_prevents(tmp_path: Path) -> None:
    new = side(tmp_path, "new", "failed", "not-run", "not-run")
    change = EngineChange("m", "e")
    assert not compare_ends(change, side(tmp_path, "old"), new, TARGETS)
    assert (change.verdicts, change.why) == ([verdicts.WRONG], ["export:m: why"])


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({}, []),
        ({"error": 5e-6}, []),  # rounding of another kernel
        ({"error": 1e-4}, [verdicts.LESS_PRECISE]),
        ({"int8": 5}, [verdicts.LESS_PRECISE]),
        ({"size": 104}, []),
        ({"size": 106, "error": 1e-4}, [verdicts.LESS_PRECISE, verdicts.LARGER]),
        ({"size": 50, "int8": 9}, []),
    ],
)
def test_errors_layers_and_sizes_are_compared(
    tmp_path: Path, new: dict[str, Any], expected: list[str]
) -> None:
    assert judged(tmp_path, {}, new) == expected


def test_a_check_against_the_old_golden_outputs_precedes_that_of_the_new_ones(
    tmp_path: Path,
) -> None:
    checked = {"status": "failed", "reason": "y differs"}
    assert judged(tmp_path, {}, {}, checked=checked) == [verdicts.WRONG]


def test_an_error_that_was_large_before_may_double() -> None:
    change = EngineChange("m", "e")
    compare_errors(change, 1e-3, 1.9e-3)
    assert not change.verdicts
    compare_errors(change, 1e-3, 2.1e-3)
    assert change.verdicts == [verdicts.LESS_PRECISE]
    compare_errors(change, 1e-3, float("nan"))
    assert len(change.verdicts) == 1


def check(status: str, change: float, low: float, high: float) -> dict[str, Any]:
    ends = {"before": 1.0, "after": 1 + change, "confidence": 0.98, "text": "latency …"}
    return {"status": status, "change": change, "low": low, "high": high, **ends}


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ({"latency": check("passed", 0.01, -0.01, 0.03)}, []),
        ({"latency": check("failed", 0.2, 0.15, 0.25)}, [verdicts.SLOWER]),
        ({"latency": check("passed", -0.2, -0.25, -0.15)}, [verdicts.FASTER]),
        ({"latency": check("passed", -0.05, -0.09, -0.01)}, []),
        ({"latency": check("noisy", 0.1, -0.2, 0.3)}, [verdicts.UNDECIDED]),
        (
            {"latency": check("failed", 0.2, 0.1, 0.3), "memory": check("failed", 0.2, 0.1, 0.3)},
            [verdicts.SLOWER, verdicts.LARGER],
        ),
        ({}, [verdicts.INCOMPARABLE]),
    ],
)
def test_gates_decide_on_latency_and_memory(
    checks: dict[str, dict[str, Any]], expected: list[str]
) -> None:
    change = EngineChange("m", "e")
    compare_timings(change, checks, 0.05)
    assert change.verdicts == expected
    assert change.is_held == bool({*expected} & {*verdicts.HELD})


@pytest.mark.parametrize(
    ("status", "ends", "expected"),
    [
        ("passed", (-0.2, -0.4, 0.01), True),
        ("passed", (-0.2, -0.3, -0.1), False),  # proven
        ("passed", (-0.02, -0.3, 0.02), False),
        ("noisy", (0.02, -0.1, 0.2), True),
        ("failed", (0.2, 0.1, 0.3), False),
    ],
)
def test_an_open_latency_takes_more_rounds(
    status: str, ends: tuple[float, float, float], expected: bool
) -> None:
    assert needs_more_rounds({"latency": check(status, *ends)}, 0.05) is expected
    assert not needs_more_rounds({}, 0.05)
