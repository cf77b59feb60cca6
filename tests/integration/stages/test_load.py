"""The load stage with real engines."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from engine_jobs import BATCHES, random_x, resolved, save_at, stage_job, write_golden
from small_graphs import conv_bn

from buildsys.errors import StageError
from buildsys.report.result_files import parse
from buildsys.stages.engine import stage as engine
from buildsys.stages.load import stage as load
from buildsys.stages.load.report import key_figure
from buildsys.stages.load.result import LoadResult
from buildsys.workers.job import StageResult

QUICK = {"p99": "1s", "duration": 0.3, "budget": 20}


def loaded(build: Path, backend: str = "onnxruntime", **profile: Any) -> StageResult:
    """Build the engine of a small graph, and measure it under load."""
    noise = profile.pop("noise", None)
    bench = {"load": {**QUICK, **profile}, "noise": noise}
    spec = resolved({"backend": backend}, bench=bench)
    write_golden(
        build, {case: {} for case in BATCHES}, {c: random_x(n) for c, n in BATCHES.items()}
    )
    file = save_at(build / "m/simplify/model.onnx", conv_bn())
    built = engine.run(stage_job(spec, "engine", build, file))
    assert built.status == "passed"
    record = {
        "backend": backend, "model": "m", "variant": "e", "status": "passed", **built.figures
    }  # fmt: skip
    (build / "m/engine/e/engine.json").write_text(json.dumps(record))
    return load.run(stage_job(spec, "load", build))


@pytest.mark.parametrize(
    ("backend", "streams"),
    [
        ("onnxruntime", None),
        pytest.param(
            "openvino", 2, marks=pytest.mark.skipif(not find_spec("openvino"), reason="optional")
        ),
    ],
)
def test_settings_are_measured_at_rising_rates(
    tmp_path: Path, backend: str, streams: int | None
) -> None:
    result = loaded(tmp_path, backend, batches=(1, 4), instances=(2,), threads=(1,))
    assert result.status == "passed", result.reason
    figures = json.loads(json.dumps(result.figures))
    assert figures == result.figures
    assert parse(figures, LoadResult) == figures
    names = ("batch", "instances", "threads", "streams")
    settings = {tuple(setting[name] for name in names) for setting in figures["settings"]}
    assert settings == {(1, 2, 1, streams), (4, 2, 1, streams)}
    for setting in figures["settings"]:
        rates = [point["rate_per_s"] for point in setting["points"]]
        assert rates == sorted(rates)
        assert 0 < setting["capacity_per_s"] <= setting["max_per_s"]
        assert all(p["served"] and p["p50_ms"] <= p["p99_ms"] for p in setting["points"])
        assert all(p["service_ms"] <= p["p99_ms"] for p in setting["points"])
    best, other = figures["settings"]
    assert best["capacity_per_s"] * best["batch"] >= other["capacity_per_s"] * other["batch"] > 0
    assert "/s with p99 < 1,000 ms: " in key_figure(parse(figures, LoadResult))
    assert figures["energy"]


def test_given_rates_and_their_doubts(tmp_path: Path) -> None:
    result = loaded(tmp_path, rates=(20, 40), noise={"other_load": None})
    (setting,) = result.figures["settings"]
    assert [point["rate_per_s"] for point in setting["points"]] == [20, 40]
    assert setting["capacity_per_s"] == 40
    assert setting["is_least"]
    assert result.status == "noisy"
    assert result.reason.endswith("12 requests at 40.0 per second: raise bench.load.duration")


def test_a_load_that_cannot_be_made_fails_with_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="this machine cannot send 100,000,000 requests per") as no:
        loaded(tmp_path, rates=(1e8,))
    assert no.value.hint == "lower bench.load.rates"


def test_an_engine_that_is_not_there_or_not_loaded_is_unavailable(tmp_path: Path) -> None:
    spec = resolved({"backend": "onnxruntime"}, bench={"load": QUICK})
    write_golden(tmp_path, {"opt": {}}, {"opt": random_x(2)})
    job = stage_job(spec, "load", tmp_path)
    assert load.run(job).status == "unavailable"
    broken = save_at(tmp_path / "m/engine/e/engine.onnx", conv_bn())
    result = load.run(replace(job, inputs={**job.inputs, "engine": broken}))
    assert result.status == "unavailable"
    assert "engine.json" in result.reason
