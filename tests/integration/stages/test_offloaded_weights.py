"""Large weights kept out of a simplifier: equal results, copied from file to file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from small_graphs import make_model, simplify_job, weights

from buildsys.onnx_graphs.onnx_file import load_model, save_model
from buildsys.stages.simplify import stage as simplify
from buildsys.stages.simplify import tools
from buildsys.stages.simplify.tools import offload_weights

FLOAT = TensorProto.FLOAT
node = helper.make_node


def network(
    nodes: list[onnx.NodeProto],
    stored: Mapping[str, np.ndarray],
    x: Any = (FLOAT, ["batch", 512]),
    y: Any = None,
) -> ModelProto:
    return make_model(nodes, {"x": x}, {"y": y or (FLOAT, ["batch", 512])}, stored)


def perceptron() -> ModelProto:
    """Two large layers, with an identity and a weight to fold between them."""
    nodes = [
        node("Gemm", ["x", "w0", "b"], ["a"], name="first", transB=1),
        node("Identity", ["a"], ["same"], name="identity"),
        node("Mul", ["scale", "scale"], ["squared"], name="square"),
        node("Mul", ["same", "squared"], ["scaled"], name="scaled"),
        node("Relu", ["scaled"], ["r"], name="relu"),
        node("Gemm", ["r", "w1"], ["y"], name="second"),
    ]
    stored = {
        "w0": weights(512, 512),
        "w1": weights(512, 512, seed=1),
        "b": weights(512),
        "scale": weights(512),
    }
    return network(nodes, stored)


def written(folder: Path, model: ModelProto) -> Path:
    """Write a graph with external weights."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, folder / "model.onnx", inline_limit=0)
    return folder / "model.onnx"


def offloaded(folder: Path, model: ModelProto) -> list[str]:
    path = written(folder, model)
    return [
        tensor.name
        for tensor in offload_weights(load_model(path, external_data=False), path.parent)
    ]


def test_offloading_changes_neither_graph_nor_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = written(tmp_path / "export", perceptron())
    found, given = {}, []
    tool = tools._import_onnxsim()
    real = tool.simplify
    monkeypatch.setattr(
        tool, "simplify", lambda model, **options: given.append(model) or real(model, **options)
    )
    for name in ("offloaded", "whole"):
        (tmp_path / name).mkdir()
        job = simplify_job(
            tmp_path / name, source, cases={"odd": {"batch": 3}},
            inputs={"x": {"shape": ["batch", 512], "dtype": "float32"}},
        )  # fmt: skip
        result = simplify.run(job)
        assert result.status == "passed", result.reason
        found[name] = onnx.load(job.outputs["model"])
        monkeypatch.setattr(tools, "offload_weights", lambda *_: [])
    assert isinstance(given[0], onnx.ModelProto)  # without the offloaded weights
    assert given[1] == str(source)
    nodes = [
        [each.SerializeToString(deterministic=True) for each in model.graph.node]
        for model in found.values()
    ]
    assert nodes[0] == nodes[1]
    assert len(nodes[0]) == 4  # the identity and the square are gone
    stored = [
        {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
        for model in found.values()
    ]
    assert stored[0].keys() == stored[1].keys()
    assert all(np.array_equal(stored[0][name], stored[1][name]) for name in stored[0])
    assert [value.name for value in found["offloaded"].graph.input] == ["x"]


def test_weights_are_offloaded_if_values_make_no_difference(tmp_path: Path) -> None:
    assert offloaded(tmp_path, perceptron()) == ["w0", "w1"]


CONV = {"x": (FLOAT, ["batch", 256, 8, 8]), "y": (FLOAT, ["batch", 256, 8, 8])}
W4 = weights(256, 256, 3, 3)
PAD = {"pads": [1, 1, 1, 1]}
SMALL = weights(256)


def with_batch_norm() -> ModelProto:
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv", **PAD),
        node("BatchNormalization", ["c", "s", "s", "s", "v"], ["y"], name="bn"),
    ]
    return network(nodes, {"w": W4, "s": SMALL, "v": np.abs(SMALL)}, **CONV)


def with_matmul_and_bias() -> ModelProto:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="matmul"),
        node("Add", ["m", "b"], ["y"], name="add"),
    ]
    return network(nodes, {"w": weights(512, 512), "b": weights(512)})


def with_equal_weights() -> ModelProto:
    nodes = [
        node("Gemm", ["x", "w0"], ["a"], name="first"),
        node("Gemm", ["a", "w1"], ["y"], name="second"),
    ]
    return network(nodes, {"w0": weights(512, 512), "w1": weights(512, 512)})


def with_a_constant_product() -> ModelProto:
    nodes = [
        node("Gemm", ["c", "w"], ["k"], name="folded"),
        node("Add", ["x", "k"], ["y"], name="add"),
    ]
    return network(nodes, {"w": weights(512, 512), "c": weights(1, 512)})


def with_another_use() -> ModelProto:
    nodes = [
        node("Gemm", ["x", "w"], ["g"], name="gemm"),
        node("ReduceSum", ["w"], ["total"], name="sum", keepdims=0),
        node("Mul", ["g", "total"], ["y"], name="mul"),
    ]
    return network(nodes, {"w": weights(512, 512)})


def with_a_use_in_a_branch() -> ModelProto:
    y = helper.make_tensor_value_info("z", FLOAT, ["batch", 512])
    body = helper.make_graph([node("Gemm", ["g", "w"], ["z"], name="inner")], "body", [], [y])
    other = helper.make_graph([node("Identity", ["g"], ["z"], name="same")], "other", [], [y])
    nodes = [
        node("Gemm", ["x", "w"], ["g"], name="outer"),
        node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        node("Cast", ["s"], ["c"], name="cast", to=TensorProto.BOOL),
        node("If", ["c"], ["y"], name="if", then_branch=body, else_branch=other),
    ]
    return network(nodes, {"w": weights(512, 512)})


def with_the_weight_as_output() -> ModelProto:
    nodes = [node("Gemm", ["x", "w"], ["y"], name="gemm")]
    shape = (FLOAT, [512, 512])
    return make_model(
        nodes,
        {"x": (FLOAT, ["batch", 512])},
        {"y": (FLOAT, ["batch", 512]), "w": shape},
        {"w": weights(512, 512)},
    )


@pytest.mark.parametrize(
    "make",
    [
        with_batch_norm, with_matmul_and_bias, with_equal_weights, with_a_constant_product,
        with_another_use, with_a_use_in_a_branch, with_the_weight_as_output,
    ],
)  # fmt: skip
def test_what_a_rewrite_may_use_stays(tmp_path: Path, make: Any) -> None:
    onnx.checker.check_model(make(), full_check=True)
    assert offloaded(tmp_path, make()) == []
