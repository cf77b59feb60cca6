"""Small ONNX graphs, and stage jobs on them without the orchestrator."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from buildsys.onnx_graphs.tensors import tensor_of
from buildsys.workers.job import Job

CASES = {"min": {"batch": 1}, "opt": {"batch": 2}, "odd": {"batch": 3}}
INPUTS = {"x": {"shape": ["batch", 3, 8, 8], "dtype": "float32"}}
SIMPLIFY = {
    "tool": "onnxsim",
    "constant_folding": True,
    "shape_inference": True,
    "fuse": True,
    "skip_passes": [],
    "extra_passes": [],
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


def parse(text: str, stored: Mapping[str, np.ndarray] | None = None, opset: int = 17) -> ModelProto:
    """Parse a graph such as ``(float[n,4] x) => (float[n,4] y) { ["name"] y = MatMul(x, w) }``."""
    functions = ', "my" : 1' if "my." in text else ""
    header = f'<ir_version: 10, opset_import: ["" : {opset}{functions}]>'
    model: ModelProto = parser.parse_model(f"{header} graph {text}")
    arrays = (stored or {}).items()
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays)
    return model


def conv_bn(opset: int = 17) -> ModelProto:
    """conv → batch norm → identity → relu → global average pool → flatten → gemm → softmax"""
    stored = {
        "w": weights(4, 3, 3, 3),
        "scale": 1 + 0.1 * weights(4),
        "bias": weights(4, seed=1),
        "mean": weights(4, seed=2),
        "var": 1 + np.abs(weights(4, seed=3)),
        "fc": weights(5, 4, seed=4),
    }
    text = """(float[batch,3,8,8] x) => (float[batch,5] y) {
        [conv] conv = Conv <pads = [1, 1, 1, 1]> (x, w)
        [bn] bn = BatchNormalization(conv, scale, bias, mean, var)
        [identity] same = Identity(bn)
        [relu] relu = Relu(same)
        [pool] pool = GlobalAveragePool(relu)
        [flatten] flat = Flatten(pool)
        [fc] logits = Gemm <transB = 1> (flat, fc)
        [softmax] y = Softmax <axis = 1> (logits) }"""
    return parse(text, stored, opset)


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
    text = """(float[batch,2] x) => (float[3,batch] y, float[batch,2] final) {
        a = Gather <axis = 1> (x, zero)
        b = Gather <axis = 1> (x, one)
        outer = Mul(a, b)
        total = ReduceSum <keepdims = 0> (outer)
        start = Add(x, total)
        final, products = Loop(count, , start) <body = body
            (int64 index, bool keep, float[batch,2] state) =>
            (bool keep_out, float[batch,2] state_out, float[batch] inner)
            {
                twice = Add(state, state)
                c = Gather <axis = 1> (twice, zero)
                d = Gather <axis = 1> (twice, one)
                inner = Mul(c, d)
                keep_out = Identity(keep)
                state_out = Identity(twice)
            }>
        y = Add(outer, products) }"""
    stored = {"zero": np.array(0), "one": np.array(1), "count": np.array(3)}
    return parse(text, stored)


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
