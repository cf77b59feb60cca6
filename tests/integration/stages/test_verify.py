"""The verify stage: correct engines pass, wrong outputs are named and saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_jobs import BATCHES, random_x, resolved, save_at, stage_job, write_golden
from onnx import numpy_helper
from small_graphs import conv_bn, parse

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


@pytest.mark.parametrize("scale", [0.0, 0.5, -1.0])
def test_an_int8_engine_that_loses_the_variation_fails(tmp_path: Path, scale: float) -> None:
    int8 = {**ORT, "precision": "int8"}
    result = verified(tmp_path, squashed(scale), golden(squashed(1.0)), int8, **INT8)
    assert all(case["y"]["passed"] for case in result.figures["cases"].values())
    assert result.status == "failed"
    assert "output 'y': over 14 samples, its " in result.reason
    assert "calibrate on data like the golden inputs" in result.hint
    right = verified(tmp_path, squashed(1.0), golden(squashed(1.0)), int8, **INT8)
    assert right.status == "passed", right.reason
    assert right.figures["agreement"]["y"]["correlation"] == pytest.approx(1.0)


def first_item_for_all() -> onnx.ModelProto:
    """Return conv_bn with batch 1 baked in: results of the first item."""
    text = """(float[batch,3,8,8] x) => (float[batch,5] y) {
        [first_of_batch] first = Slice(x, zero, end, zero)
        conv = Conv <pads = [1, 1, 1, 1]> (first, w)
        bn = BatchNormalization(conv, scale, bias, mean, var)
        relu = Relu(bn) pool = GlobalAveragePool(relu) flat = Flatten(pool)
        logits = Gemm <transB = 1> (flat, fc) item = Softmax <axis = 1> (logits)
        [batch] batch_size = Shape <end = 1> (x)
        [size] size = Concat <axis = 0> (batch_size, classes)
        [all_alike] y = Expand(item, size) }"""
    bounds = {"zero": [0], "end": [1], "classes": [5]}
    stored = {t.name: numpy_helper.to_array(t) for t in conv_bn().graph.initializer}
    return parse(text, stored | {name: np.array(v, np.int64) for name, v in bounds.items()})


def test_an_engine_correct_only_at_batch_1_fails_with_the_wrong_cases(tmp_path: Path) -> None:
    result = verified(tmp_path, first_item_for_all(), golden(conv_bn()))
    assert result.status == "failed"
    start = "the engine e of m is wrong in 3 of 4 cases: output 'y', case opt (batch 2): at [1, "
    assert result.reason.startswith(start), result.reason
    assert result.reason.endswith("(and 2 more); it is right in case min (batch 1)")
    failed = {failure["case"]: failure for failure in result.figures["failures"]}
    assert failed.keys() == {"opt", "max", "odd"}
    assert all(failure["index"][0] > 0 for failure in failed.values()), "the first item is right"
    assert failed["opt"]["dims"] == {"batch": 2}
    assert result.figures["cases"]["min"]["y"]["passed"] is True
    kept = tmp_path / "m" / "verify" / "failed"
    assert sorted(path.name for path in kept.iterdir()) == ["e-max.npz", "e-odd.npz", "e-opt.npz"]
