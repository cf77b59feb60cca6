import json
import platform
from datetime import datetime, timezone
from pathlib import Path

import pytest

from buildsys.workers.job import Job, StageResult
from buildsys.workers.result_file import format_figures, without_long_lists, write_result

STARTED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("verify:m:e", "verify", "m", "e", {}, {}, {"result": tmp_path / "e.json"}, tmp_path)


def test_header_then_figures(job: Job) -> None:
    result = StageResult("failed", "differs", "look", {"cases": {"opt": "ü"}})
    write_result(job, result, started=STARTED, measured={"seconds": 1.5, "peak_rss_mib": 10.5})
    content = json.loads(job.outputs["result"].read_text(encoding="utf-8"))
    assert content.pop("toolchain")["python"] == platform.python_version()
    assert content == {
        "schema": "buildsys/result/1",
        "target": "verify:m:e",
        "stage": "verify",
        "model": "m",
        "variant": "e",
        "status": "failed",
        "reason": "differs",
        "hint": "look",
        "started": "2026-01-02T03:04:05.678Z",
        "seconds": 1.5,
        "peak_rss_mib": 10.5,
        "cases": {"opt": "ü"},
    }
    assert list(content)[-1] == "cases"


def test_an_unwritable_figure_leaves_no_file(job: Job) -> None:
    with pytest.raises(TypeError):
        write_result(job, StageResult(figures={"value": {1, 2}}), started=STARTED, measured={})
    assert not job.outputs["result"].exists()


def test_only_lists_of_numbers_are_on_one_line() -> None:
    figures = {
        "samples_ms": [0.5, 1.25],
        "shape": (1, 3),
        "deep": {"empty": {}, "none": [], "rows": [[1], {"a": "ü"}]},
    }
    text = format_figures(figures)
    assert text == (
        '{\n  "samples_ms": [0.5, 1.25],\n  "shape": [1, 3],\n  "deep": {\n'
        '    "empty": {},\n    "none": [],\n'
        '    "rows": [\n      [1],\n      {\n        "a": "ü"\n      }\n    ]\n  }\n}\n'
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_become_null(value: float) -> None:
    figures = {"alone": value, "listed": [1.5, value], "deep": [{"within": value}]}
    expected = {"alone": None, "listed": [1.5, None], "deep": [{"within": None}]}
    assert json.loads(format_figures(figures), parse_constant=pytest.fail) == expected
    assert without_long_lists(figures) == expected


def test_long_lists_stay_in_the_file() -> None:
    figures = {
        "raw": [0.0] * 17,
        "shape": (0,) * 16,
        "cases": [{"raw": "x" * 100, "deep": [1] * 17}],
    }
    assert without_long_lists(figures) == {"shape": [0] * 16, "cases": [{"raw": "x" * 100}]}
