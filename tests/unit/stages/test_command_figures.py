"""Figures of commands: their form and their limits."""

import json
from pathlib import Path
from typing import Any

import pytest

from buildsys.errors import StageError
from buildsys.report.key_figures import read_results
from buildsys.stages.command.held_folder import HeldFolder
from buildsys.stages.command.outputs import ReportedFigure, check_limits, read_figures
from buildsys.stages.command.report import key_figure, table
from buildsys.workers.job import Job

JOB = Job("command:m:c", "command", "m", "c", {}, {}, {}, Path())


def checked(found: dict[str, Any], limits: dict[str, Any] | None = None) -> tuple[Any, str]:
    bounds = {name: {"min": None, "max": None, **limit} for name, limit in (limits or {}).items()}
    reported = {name: ReportedFigure(**figure) for name, figure in found.items()}
    return check_limits(reported, bounds, JOB)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "did not write {figures}"),
        ("", "Invalid JSON"),
        ("[1]", "Input should be an object"),
        ("{}", "there is none"),
        ('{"a": 1}', "a: Input should be an object"),
        ('{"a": {"unit": "ms"}}', "a.value: Field required"),
        ('{"a": {"value": 1, "units": "ms"}}', "a.units: Extra"),
        ('{"a": {"value": "1"}}', "a.value: Input should be a valid number"),
        ('{"a": {"value": true}}', "a.value: Input should be a valid number"),
        ('{"a\\n": {"value": 1}}', "String should match"),
        ('{"a": {"value": 1, "min": NaN}}', "a.min: Input should be a finite number"),
        ('{"a": {"value": 1, "high": 1e999}}', "a.high: Input should be a finite number"),
        ('{"a": {"value": 1, "low": 5, "high": -5}}', "low 5 is more than high -5"),
        ('{"a": {"value": 1, "min": 5, "max": 4}}', "min 5 is more than max 4"),
    ],
)
def test_figures_of_another_form(tmp_path: Path, text: str | None, problem: str) -> None:
    file = tmp_path / "figures.json"
    if text is not None:
        file.write_text(text)
    with HeldFolder.hold(tmp_path) as work, pytest.raises(StageError) as caught:
        read_figures(work, JOB)
    assert problem in caught.value.problem
    assert caught.value.hint


@pytest.mark.parametrize(
    ("figure", "limits", "failure"),
    [
        ({"value": 2, "max": 1}, {}, "a is 2, more than its limit 1"),
        (
            {"value": 0.5002, "max": 0.5},
            {},
            "a is 0.500 (0.04 % beyond), more than its limit 0.500",
        ),
        ({"value": 0.5, "min": 1, "unit": "%"}, {}, "a is 0.500 %, less than its limit 1 %"),
        ({"value": 2, "max": 1}, {"max": 3}, ""),
        ({"value": 2, "max": 3}, {"max": 1}, "a is 2, more than its limit 1"),
        ({"value": 1, "max": 1, "min": 1}, {}, ""),
        ({"value": float("nan")}, {}, "a is not a finite number"),
        ({"value": float("inf"), "min": 1}, {}, "a is not a finite number"),
    ],
)
def test_limits(figure: dict[str, Any], limits: dict[str, Any], failure: str) -> None:
    found, text = checked({"a": figure}, {"a": limits} if limits else {})
    assert text == failure
    assert found["a"]["passed"] is not bool(failure)


def test_several_failures_and_a_misspelled_limit() -> None:
    _, text = checked({"a": {"value": 2, "max": 1}, "b": {"value": 2, "max": 1}})
    assert text == "a is 2, more than its limit 1 (and 1 more)"
    with pytest.raises(StageError) as caught:
        checked({"latency": {"value": 1}}, {"latancy": {"max": 2}})
    assert caught.value.hint == "did you mean latency?"


def test_report_and_console_have_the_same_figures(tmp_path: Path) -> None:
    found, _ = checked(
        {
            "time": {"value": 1.25, "unit": "ms", "low": 1.2, "high": 1.35},
            "wrong": {"value": 0, "max": 0, "min": 0},
            "rate": {"value": 12345.6, "unit": "tokens/s"},
            "more": {"value": 1},
        }
    )
    assert found["time"] == {"value": 1.25, "unit": "ms", "interval": [1.2, 1.35]}
    result = {
        "status": "passed", "stage": "command", "variant": "c", "target": "command:m:c",
        "figures": found,
    }  # fmt: skip
    path = tmp_path / "m/command/c/command.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(result))
    (read,) = read_results({"command:m:c": path})
    assert (read.file, read.log) == ("command/c/command.json", "command/c/command.log")
    rows = table([read]).rows
    assert rows[0] == ("c", "time", "1.25 ms", "1.20 to 1.35", "—", "—")
    assert rows[1] == ("c", "wrong", "0", "—", "≥ 0 and ≤ 0", "yes")
    text = "time 1.25 ±0.10 ms, wrong 0, rate 12,346 tokens/s, and 1 more"
    assert key_figure(result) == text  # type: ignore[arg-type]
    outputs = {"outputs": {"m": {"path": "m/", "files": 3, "bytes": 2000}}}
    assert key_figure(outputs) == "3 files, 2.00 kB"  # type: ignore[arg-type]
