"""Graphs of ONNX Runtime only: fused, with weights in int4, or quantized at run time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_jobs import random_x, request, resolved, stage_job, write_golden
from small_graphs import conv_bn, parse, weights, write

from buildsys.backends.onnxruntime import backend
from buildsys.backends.onnxruntime.graphs import check_kernels
from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import CheckFailed, StageError
from buildsys.stages.convert import stage as convert
from buildsys.workers.job import StageResult

BERT = {"model_type": "bert"}
INT4 = {"precision": "int4"}
DYNAMIC = {"precision": "int8", "quantization": "dynamic"}


SHAPE = "(float[batch,3,8,8] x) => (float[batch,3,8,8] y)"


def feed_forward() -> onnx.ModelProto:
    """matmul → bias → gelu, in single nodes → matmul"""
    text = """{ ["/up"] first = MatMul(x, w) ["/bias"] biased = Add(first, b)
        ["/div"] scaled = Div(biased, root) ["/erf"] erf = Erf(scaled)
        ["/add"] shifted = Add(erf, one) ["/mul"] doubled = Mul(biased, shifted)
        ["/gelu"] gelu = Mul(doubled, half) ["/down"] y = MatMul(gelu, v) }"""
    numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    stored = {name: np.array(value, np.float32) for name, value in numbers.items()}
    stored |= {"w": weights(8, 64), "b": weights(64, seed=1), "v": weights(64, 8, seed=2)}
    return parse(SHAPE + text, stored)


def converted(
    folder: Path, engine: dict[str, Any], model: onnx.ModelProto | None = None, **sections: Any
) -> tuple[StageResult, Path]:
    model = model or feed_forward()
    spec = resolved({"backend": "onnxruntime", **engine}, **sections)
    graph = OrtGraph(model.SerializeToString())
    inputs = {case: random_x(size) for case, size in (("min", 1), ("opt", 2), ("max", 8))}
    inputs["odd"] = random_x(7)
    write_golden(folder, {case: graph.run(each) for case, each in inputs.items()}, inputs)
    job = stage_job(spec, "convert", folder, write(folder / "source", model))
    return convert.run(job), job.outputs["model"]


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(str(path)).graph.node]


def build(folder: Path, model: Path, engine: dict[str, Any], **sections: Any) -> dict[str, Any]:
    spec = resolved({"backend": "onnxruntime", **engine}, **sections)
    asked = request(model, folder / "engine", spec["engines"][0])
    return {**backend.build(asked), **backend.describe(asked.engine, asked.options)}


def test_weights_in_int4_stay_in_the_engine(tmp_path: Path) -> None:
    result, path = converted(tmp_path, INT4, quantize_weights={"block_size": 16})
    assert result.status == "passed", result.reason
    figures = result.figures
    assert figures["quantized"] == ["/up", "/down"]
    assert figures["kernels"] == {"com.microsoft::MatMulNBits": 2}
    assert figures["bytes_after"] < figures["bytes_before"]
    assert set(figures["cases"]) == {"min", "opt", "max", "odd"}
    json.dumps(figures, allow_nan=False)
    nodes = [node for node in onnx.load(str(path)).graph.node if node.op_type == "MatMulNBits"]
    sizes = [{a.name: a.i for a in node.attribute} for node in nodes]
    assert [(size["bits"], size["block_size"]) for size in sizes] == [(4, 16), (4, 16)]
    assert build(tmp_path, path, INT4)["layers"]["com.microsoft:MatMulNBits"] == 2


def test_activations_are_quantized_at_run_time(tmp_path: Path) -> None:
    result, path = converted(tmp_path, DYNAMIC, quantize_weights={"exclude": ["/down"]})
    assert result.status == "passed", result.reason
    assert result.figures["kernels"] == {"MatMulInteger": 1}
    assert result.figures["kept_reasons"] == {"/down": "excluded"}
    assert operators(path).count("DynamicQuantizeLinear") == 1
    layers = build(tmp_path, path, DYNAMIC)["layers"]
    assert any("MatMulInteger" in one or "DynamicQuantizeMatMul" in one for one in layers)


@pytest.mark.parametrize("engine", [INT4, DYNAMIC])
def test_an_excluded_gemm_keeps_its_weights(tmp_path: Path, engine: dict[str, Any]) -> None:
    text = """(float[batch,3,8,8] x) => (float[batch,16] y) { ["/flatten"] flat = Flatten(x)
        ["/first"] hidden = Gemm <transB = 1> (flat, w, b)
        ["/second"] y = Gemm <transB = 1> (hidden, v) }"""
    stored = {"w": weights(32, 192), "b": weights(32, seed=1), "v": weights(16, 32, seed=2)}
    model = parse(text, stored)
    section = {"exclude": ["/second"]}
    result, _ = converted(tmp_path, engine, model, quantize_weights=section)
    assert result.status == "passed", result.reason
    figures = result.figures
    assert (figures["quantized"], [*figures["kept_reasons"]]) == (["/first"], ["/second"])
    assert sum(figures["kernels"].values()) == 1
    assert figures["bytes_after"] < figures["bytes_before"] / 2  # without the weights before


def test_a_graph_is_fused_and_quantized(tmp_path: Path) -> None:
    result, path = converted(tmp_path / "a", {"optimized": True}, optimize=BERT)
    assert result.status == "passed", result.reason
    assert result.figures["fused"] == {"com.microsoft::BiasGelu": 1}
    assert "Erf" not in operators(path)
    both = {**INT4, "optimized": True}
    result, path = converted(tmp_path / "b", both, optimize=BERT)
    assert result.status == "passed", result.reason
    assert {"BiasGelu", "MatMulNBits"} <= set(operators(path))


def test_a_model_type_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="fused no node of this graph as model_type bert") as error:
        converted(tmp_path, {"optimized": True}, conv_bn(), optimize=BERT)
    assert "choose the model_type" in error.value.hint


def test_a_graph_without_products_cannot_be_quantized(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="no weight of the graph can be quantized to int4"):
        converted(tmp_path, INT4, parse(SHAPE + "{ y = Relu(x) }"))


def test_a_large_error_fails_with_a_remedy(tmp_path: Path) -> None:
    strict, smallest = {"int4": {"rtol": 1e-4}}, {"block_size": 16}
    result, _ = converted(tmp_path / "32", INT4, verify=strict)
    assert result.status == "failed"
    assert "quantize_weights.block_size" in result.hint
    assert "raise verify.int4" in result.hint
    result, _ = converted(tmp_path / "16", INT4, verify=strict, quantize_weights=smallest)
    assert "block_size" not in result.hint


def test_a_pattern_without_a_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"quantize_weights\.exclude: /upp matches no node"):
        converted(tmp_path, INT4, quantize_weights={"exclude": ["/upp"]})


def test_an_engine_without_its_kernels_fails(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="requested in int4, but none of its nodes is a MatMulN"):
        check_kernels(write(tmp_path, conv_bn()), INT4)
