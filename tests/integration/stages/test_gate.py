"""Rounds of real processes, as gates measure."""

import sys
from functools import partial
from pathlib import Path

import pytest
from engine_jobs import random_x, resolved, save_at, stage_job, write_golden
from small_graphs import conv_bn

from buildsys.errors import StageError
from buildsys.stages.bench.timed_engine import RemoteEngine
from buildsys.stages.engine import stage as engine
from buildsys.stages.gate.stage import RoundPace, measure_rounds
from buildsys.system.toolchains import Toolchain


def test_both_sides_are_measured_in_processes_of_their_own(tmp_path: Path) -> None:
    spec = resolved({"backend": "onnxruntime", "intra_op_threads": 1})
    write_golden(tmp_path, {"opt": {}}, {"opt": random_x(2)})
    model = save_at(tmp_path / "model.onnx", conv_bn())
    assert engine.run(stage_job(spec, "engine", tmp_path, model)).status == "passed"
    job = stage_job(spec, "bench", tmp_path)
    here = Toolchain("here", Path(sys.executable), {})

    def opens(file: Path) -> partial[RemoteEngine]:
        place = {"project": tmp_path, "folder": tmp_path}
        return partial(RemoteEngine, here, "onnxruntime", file, job.options["engine"], (), **place)

    pace, side = RoundPace(job.inputs["case.opt"], None, 0.0, 0.01), opens(job.inputs["engine"])
    found = measure_rounds({"baseline": side, "this build": side}, pace, range(1))
    for figures in found.values():
        assert set(figures) == {"latency", "throughput", "memory", "load_time", "first_call"}
        assert 0 < figures["latency"][0] < 1
        assert figures["throughput"][0] > 2
        assert figures["memory"][0] > 10_000_000
    with pytest.raises(StageError):
        measure_rounds({"baseline": opens(tmp_path / "none.onnx")}, pace, range(1))
