from __future__ import annotations

import json
import platform
from datetime import datetime, timezone
from pathlib import Path

import pytest

from buildsys.worker.job import Job, StageResult
from buildsys.worker.result import write_result

STARTED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("verify:m:e", "verify", "m", "e", {}, {}, {"result": tmp_path / "e.json"}, tmp_path)


def test_header_then_figures(job: Job) -> None:
    result = StageResult("failed", "differs", "look", {"cases": {"opt": "ü"}})
    write_result(job, result, started=STARTED, seconds=1.5, peak_rss_mib=10.5)
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


def test_nothing_is_written_when_a_figure_cannot_be(job: Job) -> None:
    with pytest.raises(TypeError):
        write_result(job, StageResult(figures={"value": {1, 2}}), started=STARTED, seconds=0, peak_rss_mib=0)
    assert not job.outputs["result"].exists()
