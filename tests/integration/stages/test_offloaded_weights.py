"""Large weights kept out of a simplifier: equal results, copied from file to file."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from small_graphs import parse, simplify_job, weights

from buildsys.onnx_graphs.onnx_file import load_model, save_model
from buildsys.stages.simplify import stage as simplify
from buildsys.stages.simplify import tools
from buildsys.stages.simplify.tools import offload_weights

ROWS = "(float[batch,512] x) => (float[batch,512] y)"
LARGE = {"w": weights(512, 512), "v": weights(512, 512, seed=1), "s": weights(512)}


def perceptron() -> ModelProto:
    """Two large layers, with an identity and a weight to fold between them."""
    text = """{ [first] a = Gemm <transB = 1> (x, w, s) [identity] same = Identity(a)
        [square] squared = Mul(s, s) [scaled] scaled = Mul(same, squared)
        [relu] r = Relu(scaled) [second] y = Gemm(r, v) }"""
    return parse(ROWS + text, LARGE)


def written(folder: Path, model: ModelProto) -> Path:
    """Write a graph with external weights."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, folder / "model.onnx", inline_limit=0)
    return folder / "model.onnx"


def offloaded(folder: Path, model: ModelProto) -> list[str]:
    skeleton = load_model(written(folder, model), external_data=False)
    return [tensor.name for tensor in offload_weights(skeleton)]


def test_offloading_changes_neither_graph_nor_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = written(tmp_path / "export", perceptron())
    models, inputs = {}, []
    tool = tools._import_onnxsim()
    real = tool.simplify
    monkeypatch.setattr(
        tool, "simplify", lambda model, **options: inputs.append(model) or real(model, **options)
    )
    for name in ("offloaded", "whole"):
        (tmp_path / name).mkdir()
        job = simplify_job(
            tmp_path / name, source, cases={"odd": {"batch": 3}},
            inputs={"x": {"shape": ["batch", 512], "dtype": "float32"}},
        )  # fmt: skip
        result = simplify.run(job)
        assert result.status == "passed", result.reason
        models[name] = onnx.load(job.outputs["model"])
        monkeypatch.setattr(tools, "offload_weights", lambda *_: [])
    assert isinstance(inputs[0], onnx.ModelProto)  # without the offloaded weights
    assert inputs[1] == str(source)
    nodes = [
        [each.SerializeToString(deterministic=True) for each in model.graph.node]
        for model in models.values()
    ]
    assert nodes[0] == nodes[1]
    assert len(nodes[0]) == 4  # the identity and the square are gone
    stored = [
        {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
        for model in models.values()
    ]
    assert stored[0].keys() == stored[1].keys()
    assert all(np.array_equal(stored[0][name], stored[1][name]) for name in stored[0])
    assert [value.name for value in models["offloaded"].graph.input] == ["x"]


def test_weights_are_offloaded_if_values_make_no_difference(tmp_path: Path) -> None:
    assert offloaded(tmp_path, perceptron()) == ["w", "v"]


IMAGES = "(float[batch,256,8,8] x) => (float[batch,256,8,8] y)"
FILTERS = {"w": weights(256, 256, 3, 3), "s": np.abs(weights(256))}
STAY = {
    "a batch norm": (IMAGES + """{ c = Conv <pads = [1, 1, 1, 1]> (x, w)
        y = BatchNormalization(c, s, s, s, s) }""", FILTERS),
    "a product with a bias": (ROWS + "{ m = MatMul(x, w) y = Add(m, s) }", LARGE),
    "a constant product": (
        ROWS + "{ k = Gemm(c, w) y = Add(x, k) }", {**LARGE, "c": weights(1, 512)}
    ),
    "another use": (
        ROWS + "{ g = Gemm(x, w) total = ReduceSum <keepdims = 0> (w) y = Mul(g, total) }", LARGE
    ),
    "a use in a branch": (ROWS + """{ g = Gemm(x, w) total = ReduceSum <keepdims = 0> (x)
        c = Cast <to = 9> (total)
        y = If(c) <then_branch = t () => (float[batch,512] a) { a = Gemm(g, w) },
            else_branch = e () => (float[batch,512] b) { b = Identity(g) }> }""", LARGE),
    "an output": (
        "(float[batch,512] x) => (float[batch,512] y, float[512,512] w) { y = Gemm(x, w) }", LARGE
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STAY)
def test_what_a_rewrite_may_use_stays(tmp_path: Path, name: str) -> None:
    text, stored = STAY[name]
    model = parse(text, {key: stored[key] for key in stored if re.search(rf"\b{key}\b", text)})
    onnx.checker.check_model(model, full_check=True)
    assert offloaded(tmp_path, model) == []
