import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buildsys.errors import StageError
from buildsys.history.builds import Build
from buildsys.history.database import History
from buildsys.history.recorder import HistoryRecorder, machine_id
from buildsys.system.git import Checkout

CHECKOUT = Checkout("host/acme/models", "abc", True)
PARTS = {"config:x": "1", "device:cpu.model": "A", "tool:onnxruntime": "1.22", "env:OMP": "2"}
RESULT = {
    "cases": {
        "opt": {
            "dims": {"batch": 4},
            "batch": 4,
            "contenders": {
                "engine": {
                    "samples_ms": [1.0, "nan", 2.0],
                    "count": 3,
                    "p50_ms": 1.5,
                    "p50_interval_ms": [1.0, 2.0],
                }
            },
        }
    }
}


def make_recorder(
    history: History,
    warnings: list[str],
    checkout: Callable[[], Checkout] = lambda: CHECKOUT,
    manifest: Callable[[str], str] = lambda model: f'{{"name": "{model}"}}',
) -> HistoryRecorder:
    return HistoryRecorder(history, checkout, manifest, warnings.append)


def add(recorder: HistoryRecorder, **fields: Any) -> Build | None:
    given = {
        "target": "bench:m:ort", "key": "k", "how": "ran", "status": "passed",
        "started": "2026-01-02T03:04:05Z", "seconds": 1.5, "reason": "", "why": "", "outputs": {},
    }  # fmt: skip
    names = {"model": "m", "stage": "bench", "variant": "ort"}
    figures = {**RESULT, "peak_rss_mib": 12.5}
    return recorder.add(names, parts=PARTS, figures=figures, **{**given, **fields})


def test_a_target_is_recorded_with_its_circumstances(
    history: History, warnings_given: list[str]
) -> None:
    recorder = make_recorder(history, warnings_given)
    build = add(recorder)
    (found,) = history.builds()
    assert found == build
    assert (found.project, found.revision, found.dirty) == CHECKOUT[:3]
    assert found.position == pytest.approx(time.time(), abs=60)
    assert found.machine
    assert found.machine_id == machine_id()
    assert history.manifest(found) == {"name": "m"}
    assert history.environment(found) == {k: v for k, v in PARTS.items() if k != "config:x"}
    assert found.figures == {
        "peak_rss_mib": 12.5, "case": "opt", "contender": "engine", "latency_p50_ms": 1.5,
        "latency_interval_ms": [1.0, 2.0], "fastest": "engine",
    }  # fmt: skip
    assert warnings_given == []


def test_the_measurements_of_a_result_are_recorded(
    history: History, warnings_given: list[str], tmp_path: Path
) -> None:
    recorder = make_recorder(history, warnings_given)
    build = add(recorder)
    assert build is not None
    result = tmp_path / "result.json"
    result.write_text(json.dumps(RESULT))
    recorder.add_measurements(build, result)
    (found,) = history.measurements(build)
    assert (found.count, found.interval_ms) == (3, (1.0, 2.0))
    assert (found.dims, found.batch, found.contender) == ({"batch": 4}, 4, "engine")
    assert warnings_given == []


def test_a_history_that_cannot_be_written_costs_one_warning(
    history: History, warnings_given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make_recorder(history, warnings_given)

    def refuse(*_: object, **__: object) -> None:
        raise StageError("the disk is full")

    monkeypatch.setattr(history, "add", refuse)
    first, second = add(recorder), add(recorder)
    assert warnings_given == ["builds of this run are missing in the history: the disk is full"]
    assert first is None
    assert second is not None  # so that its caller goes on
    assert history.builds() == []


def test_without_git_the_revision_is_unknown(history: History, warnings_given: list[str]) -> None:
    def fail() -> Checkout:
        raise OSError("no git")

    add(make_recorder(history, warnings_given, fail))
    (build,) = history.builds()
    assert (build.revision, build.dirty) == ("", None)
    assert warnings_given == []
