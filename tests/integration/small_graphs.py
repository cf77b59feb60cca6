"""Small ONNX graphs, and stage jobs on them without the orchestrator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from buildsys.onnx_graphs.tensors import tensor_of
from buildsys.workers.job import Job

CASES = {"min": {"batch": 1}, "opt": {"batch": 2}, "odd": {"batch": 3}}
INPUTS = {"x": {"shape": ["batch", 3, 8, 8], "dtype": "float32"}}
SIMPLIFY = {
    "tool": "onnxsim",
    "constant_folding": True,
    "shape_inference": True,
    "fuse": True,
    "tensor_size_threshold": None,
}


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[Any]]],
    outputs: Mapping[str, tuple[int, Sequence[Any]]],
    initializers: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    **more: Any,
) -> ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *more.pop("opsets", ())]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


def conv_bn(opset: int = 17) -> ModelProto:
    """conv → batch norm → identity → relu → global average pool → flatten → gemm → softmax"""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["conv"], name="conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["conv", "scale", "bias", "mean", "var"], ["bn"], name="bn"),
        node("Identity", ["bn"], ["same"], name="identity"),
        node("Relu", ["same"], ["relu"], name="relu"),
        node("GlobalAveragePool", ["relu"], ["pool"], name="pool"),
        node("Flatten", ["pool"], ["flat"], name="flatten"),
        node("Gemm", ["flat", "fc"], ["logits"], name="fc", transB=1),
        node("Softmax", ["logits"], ["y"], name="softmax", axis=1),
    ]
    stored = {
        "w": weights(4, 3, 3, 3),
        "scale": 1 + 0.1 * weights(4),
        "bias": weights(4, seed=1),
        "mean": weights(4, seed=2),
        "var": 1 + np.abs(weights(4, seed=3)),
        "fc": weights(5, 4, seed=4),
    }
    float32 = TensorProto.FLOAT
    return make_model(
        nodes, {"x": (float32, ["batch", 3, 8, 8])}, {"y": (float32, ["batch", 5])}, stored, opset
    )


def one_node(
    op: str, attributes: Mapping[str, Any] | None = None, shape: Sequence[Any] = ("batch", 3, 8, 8)
) -> ModelProto:
    node = helper.make_node(op, ["x"], ["y"], name=op.lower(), **(attributes or {}))
    return make_model([node], {"x": (TensorProto.FLOAT, shape)}, {"y": (TensorProto.FLOAT, shape)})


def typed_network(elem_type: int, ports: int = TensorProto.FLOAT) -> ModelProto:
    """Return matmul → relu → matmul in a 16-bit type; other ``ports`` are cast."""
    node = helper.make_node
    nodes = [
        node("Cast", ["x"], ["low"], name="in", to=elem_type),
        node("MatMul", ["low", "first"], ["hidden"], name="first product"),
        node("Relu", ["hidden"], ["relu"], name="relu"),
        node("MatMul", ["relu", "second"], ["result"], name="second product"),
        node("Cast", ["result"], ["y"], name="out", to=ports),
    ]
    model = make_model(nodes, {"x": (ports, ["batch", 8])}, {"y": (ports, ["batch", 5])})
    for name, sizes in {"first": (8, 16), "second": (16, 5)}.items():
        values = tensor_of(weights(*sizes), "bfloat16" if elem_type == 16 else "float16")
        tensor = helper.make_tensor(name, elem_type, sizes, values.array.tobytes(), raw=True)
        model.graph.initializer.append(tensor)
    return model


def splits_around_a_loop() -> ModelProto:
    """Return a valid graph that ONNX Runtime 1.31 cannot load after fusing its Gathers to Splits.

    Both Splits get the name split_output, outside and inside a Loop.
    """

    def both_columns(source: str, prefix: str) -> list[onnx.NodeProto]:
        names = [f"{prefix}_{name}" for name in ("first", "second")]
        gathers = [
            helper.make_node("Gather", [source, f"{name}_index"], [name], axis=1) for name in names
        ]
        return [*gathers, helper.make_node("Mul", names, [f"{prefix}_product"])]

    def indices(prefix: str) -> dict[str, np.ndarray]:
        return {f"{prefix}_first_index": np.array(0), f"{prefix}_second_index": np.array(1)}

    node, real = helper.make_node, TensorProto.FLOAT
    body = helper.make_graph(
        [
            node("Add", ["state", "state"], ["twice"]),
            *both_columns("twice", "inner"),
            node("Identity", ["keep"], ["keep_out"]),
            node("Identity", ["twice"], ["state_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("index", TensorProto.INT64, []),
            helper.make_tensor_value_info("keep", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", real, ["batch", 2]),
        ],
        [
            helper.make_tensor_value_info("keep_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_out", real, ["batch", 2]),
            helper.make_tensor_value_info("inner_product", real, ["batch"]),
        ],
        [numpy_helper.from_array(array, name) for name, array in indices("inner").items()],
    )
    nodes = [
        *both_columns("x", "outer"),
        node("ReduceSum", ["outer_product"], ["total"], keepdims=0),
        node("Add", ["x", "total"], ["start"]),
        node("Loop", ["count", "", "start"], ["final", "products"], body=body),
        node("Add", ["outer_product", "products"], ["y"]),
    ]
    stored = {**indices("outer"), "count": np.array(3)}
    outputs = {"y": (real, [3, "batch"]), "final": (real, ["batch", 2])}
    return make_model(nodes, {"x": (real, ["batch", 2])}, outputs, stored)


def simplify_job(folder: Path, model: ModelProto | Path, **options: Any) -> Job:
    source = model if isinstance(model, Path) else write(folder / "export", model)
    out = folder / "simplify"
    out.mkdir(exist_ok=True)
    spec = {**SIMPLIFY, **options.pop("simplify", {})}
    return Job(
        target="simplify:m", stage="simplify", model="m", variant="",
        options={"simplify": spec, "cases": CASES, "inputs": INPUTS, "outputs": [], **options},
        inputs={"model": source, **data_role(source)},
        outputs={
            "model": out / "model.onnx",
            "assembled": out / "assembled.json",
            "result": out / "graph.json",
        },
        project=folder,
    )  # fmt: skip


def write(folder: Path, model: ModelProto) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def data_role(source: Path) -> dict[str, Path]:
    data = source.with_name("model.onnx.data")
    return {"model.data": data} if data.exists() else {}
