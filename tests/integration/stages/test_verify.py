"""The verify stage: correct engines pass, wrong outputs are named and saved."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_jobs import BATCHES, random_x, resolved, save_at, stage_job, write_golden
from small_graphs import parse

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.stages.engine import stage as engine
from buildsys.stages.verify import stage as verify
from buildsys.workers.job import StageResult

CASES = {**BATCHES, "odd": 3}
INPUTS = {case: random_x(batch, seed=batch) for case, batch in CASES.items()}
ORT = {"backend": "onnxruntime"}
INT8 = {"calibration": {"data": {"x": {"random": "normal"}}}}


def golden(model: onnx.ModelProto) -> dict[str, dict[str, Tensor]]:
    graph = OrtGraph(model.SerializeToString())
    return {case: graph.run(inputs) for case, inputs in INPUTS.items()}


def verified(
    build: Path,
    built: onnx.ModelProto,
    expected: dict[str, dict[str, Tensor]],
    engine_fields: dict[str, Any] = ORT,
    **sections: Any,
) -> StageResult:
    """Build an engine from a graph and verify it against golden outputs."""
    spec = resolved(engine_fields, **sections)
    write_golden(build, expected, INPUTS)
    assert (
        engine.run(stage_job(spec, "engine", build, save_at(build / "model.onnx", built))).status
        == "passed"
    )
    return verify.run(stage_job(spec, "verify", build))


def squashed(scale: float) -> onnx.ModelProto:
    """A graph with outputs of 293 plus a multiple of its input."""
    stored = {"scale": np.array(scale, np.float32), "offset": np.array(293, np.float32)}
    text = (
        "(float[batch,3,8,8] x) => (float[batch,3,8,8] y) { m = Mul(x, scale) y = Add(m, offset) }"
    )
    return parse(text, stored)


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_an_int8_engine_that_loses_the_variation_fails(tmp_path: Path, scale: float) -> None:
    int8 = {**ORT, "precision": "int8"}
    result = verified(tmp_path, squashed(scale), golden(squashed(1.0)), int8, **INT8)
    assert all(case["y"]["passed"] for case in result.figures["cases"].values())
    assert result.status == "failed"
    assert "output 'y': over 14 samples: correlation " in result.reason
    assert "calibrate on data like the golden inputs" in result.hint
    right = verified(tmp_path, squashed(1.0), golden(squashed(1.0)), int8, **INT8)
    assert right.status == "passed", right.reason
    assert right.figures["agreement"]["y"]["correlation"] == pytest.approx(1.0)
