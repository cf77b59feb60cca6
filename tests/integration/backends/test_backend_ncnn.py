"""Engines of ncnn: numbers, samples, files, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_jobs import DIMS, engine_options, random_x, refused_nodes, request
from small_graphs import conv_bn, parse, weights, write

pytest.importorskip("ncnn", reason="pip install 'buildsys[ncnn]'")

from buildsys.backends.interface import load_backend
from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import ports
from buildsys.onnx_graphs.tensors import Tensor, tensor_of

backend = load_backend("ncnn")
FILES = ("engine.param", "engine.bin", "engine.ports.json")


def options(precision: str = "fp32") -> dict[str, Any]:
    return engine_options("ncnn", threads=1, precision=precision)


def asked_for(folder: Path, model: Any, precision: str = "fp32") -> Any:
    inputs: dict[str, Any] = {port["name"]: port for port in ports(model)[0]}
    return request(write(folder, model), folder / "engine", options(precision), inputs, dims=DIMS)


def build(folder: Path, model: Any, precision: str = "fp32") -> Any:
    asked = asked_for(folder, model, precision)
    backend.build(asked)
    return asked


def run(engine: Path, inputs: dict[str, Tensor], precision: str = "fp32") -> dict[str, Tensor]:
    session = backend.load(engine, options(precision))
    try:
        return session.run(inputs)
    finally:
        session.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(build(tmp_path_factory.mktemp("ncnn"), conv_bn()).engine)


@pytest.mark.parametrize(
    ("precision", "least", "most"), [("fp32", 0, 1e-6), ("fp16", 1e-5, 2e-3), ("bf16", 1e-4, 3e-2)]
)
def test_an_engine_computes_in_its_precision(
    tmp_path: Path, precision: str, least: float, most: float
) -> None:
    asked = asked_for(tmp_path, conv_bn(), precision)
    settings = backend.build(asked)["settings"]
    assert settings["use_fp16_storage"] == (precision == "fp16")
    assert settings["weights"] == ("float16" if precision == "fp16" else "float32")
    for name, default in backend.RUN_OPTIONS.items():  # load_engine compares the types
        assert type(settings[name]) is type(default), name
    inputs = random_x(8)
    found = run(asked.engine, inputs, precision)["y"].array
    error = np.abs(found - OrtGraph(asked.onnx).run(inputs)["y"].array).max()
    assert least <= error <= most


def test_the_files_are_the_same_in_every_build(engine: Path, tmp_path: Path) -> None:
    again = build(tmp_path, conv_bn()).engine
    for name in FILES:
        assert engine.with_name(name).read_bytes() == again.with_name(name).read_bytes()
    assert sorted(path.name for path in again.parent.iterdir()) == sorted(FILES)


def test_layers_inputs_and_outputs_are_described(engine: Path) -> None:
    facts = backend.describe(engine, options())
    assert facts["engine_layers"]["Convolution"] == 1
    assert facts["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 3, 8, 8]}]


GRAPHS = {
    "matrix": "(float[6,8] x) => (float[6,3] y) { y = MatMul(x, w) }",
    "vector": "(float[8] x) => (float[3] y) { y = MatMul(x, w) }",
    "rows": "(float[batch,8] x) => (float[batch,3] y) { y = MatMul(x, w) }",
    "scalars": "(float[2,3] x, float s) => (float y)"
    " { a = Mul(x, s) y = ReduceMean<keepdims=0>(a) }",
    "several": "(float[batch,8] x, float[8] z) => (float[batch,3] y, float[batch,8] u)"
    " { u = Add(x, z) y = MatMul(u, w) }",
    "fixed batch": "(float[4,8,5,5] x) => (float[4,3,5,5] y) { y = Conv(x, k) }",
    "moved batch": "(float[1,8,5,5] x) => (float[3,1,5,5] y)"
    " { a = Conv(x, k) y = Transpose<perm=[1,0,2,3]>(a) }",
    "norm": "(float[batch,3,4,4] x) => (float[batch,3,4,4] y)"
    " { y = BatchNormalization(x, n, n, n, p) }",
    "indices": "(int64[batch,5] x) => (float[batch,5,3] y) { y = Gather<axis=0>(w, x) }",
}  # fmt: skip
STORED = {
    "w": weights(8, 3),
    "k": weights(3, 8, 1, 1),
    "n": weights(3),
    "p": np.abs(weights(3)) + 1,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_outputs_have_the_shapes_and_values_of_the_graph(tmp_path: Path, name: str) -> None:
    asked = build(tmp_path, parse(GRAPHS[name], STORED))
    generator, inputs = np.random.default_rng(0), {}
    for port, facts in asked.inputs.items():
        shape = [3 if isinstance(size, str) else size for size in facts["shape"]]
        is_index = facts["dtype"] == "int64"
        values = generator.integers(0, 8, shape) if is_index else generator.normal(size=shape)
        inputs[port] = tensor_of(values, facts["dtype"])
    found = run(asked.engine, inputs)
    for port, expected in OrtGraph(asked.onnx).run(inputs).items():
        assert found[port].shape == expected.shape
        assert np.allclose(found[port].array, expected.array, atol=1e-5)


def test_odd_names_are_kept(tmp_path: Path) -> None:
    model = conv_bn()
    renamed = {"x": 'a b=1 #x/ü"', "y": "y 0,1\\n"}
    for value in (*model.graph.input, *model.graph.output):
        value.name = renamed[value.name]
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    engine = build(tmp_path, model).engine
    assert [*run(engine, {renamed["x"]: random_x(2)["x"]})] == [renamed["y"]]


def test_samples_do_not_see_each_other(tmp_path: Path) -> None:
    """verify compares several batches, so it finds the difference."""
    text = (
        "(float[batch,2,3] x) => (float[batch,2,3] y)"
        " { m = ReduceMean<axes=[0], keepdims=1>(x) y = Sub(x, m) }"
    )
    asked = build(tmp_path, parse(text))
    inputs = {"x": tensor_of(weights(2, 2, 3))}
    assert not run(asked.engine, inputs)["y"].array.any()
    assert OrtGraph(asked.onnx).run(inputs)["y"].array.any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(float[batch,3,h,4] x) => (float[batch,3,h,4] y) { y = Relu(x) }",
         "the input x has the dynamic size h, and ncnn varies a leading batch only"),
        ("(float[batch,3] x) => (float y) { y = ReduceMean<keepdims=0>(x) }",
         "the output y has no leading batch"),
        ("(double[1,3] x) => (double[1,3] y) { y = Relu(x) }", "the input x has the type float64"),
        ("(float[1,3] x) => (int64[1,1] y) { y = ArgMax<axis=1>(x) }",
         "the output y has the type int64, and ncnn takes float32"),
        ("(float[1,2,2,2,2] x) => (float[1,2,2,2,2] y) { y = Relu(x) }", "the input x has 5 axes"),
        ("(float[1,3] x) => (float[1,3] y, float[3] c) { y = Relu(x) c = Identity(n) }",
         "ncnn has no output for c"),
        ("(float[1,3] x) => (float[1,3] y) { y = Identity(x) }", "pnnx crashed with a segm"),
    ],
)  # fmt: skip
def test_what_ncnn_cannot_represent_is_one_sentence(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(StageError, match=message):
        build(tmp_path, parse(text, STORED))


def test_operators_that_pnnx_leaves_are_all_refused(tmp_path: Path) -> None:
    text = (
        "(float[1,8,4] x) => (float[1,8,4] y)"
        ' { i = Cast<to=6>(x) f = Cast<to=1>(i) ["sum"] y = CumSum(f, one) }'
    )
    nodes = refused_nodes(backend, asked_for(tmp_path, parse(text, {"one": np.array(1)})))
    assert sorted((node.index, node.operator) for node in nodes) == [
        (0, "Cast"), (1, "Cast"), (2, "CumSum"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "the engine needs the input x"),
        ({"x": tensor_of(np.zeros((1, 3, 8, 8), np.uint8))}, "the input x is uint8, and the eng"),
        ({"x": tensor_of(np.zeros((1, 3, 8, 8)))}, "the input x is float64"),
        ({"x": tensor_of(weights(1, 3, 9, 9))}, r"the input x has the shape \[1, 3, 9, 9\]"),
        ({"x": tensor_of(weights(1, 1, 8, 8))}, r"the input x has the shape \[1, 1, 8, 8\]"),
        (random_x(9), "batch 1 to 8"),
    ],
)
def test_wrong_inputs_do_not_reach_the_library(
    engine: Path, inputs: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(StageError, match=message):
        run(engine, inputs)


def test_indices_beyond_32_bits_are_refused(tmp_path: Path) -> None:
    engine = build(tmp_path, parse(GRAPHS["indices"], STORED)).engine
    with pytest.raises(StageError, match="x has values beyond 32 bits; ncnn has no 64-bit"):
        run(engine, {"x": tensor_of(np.full((1, 5), 2**32))})


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0, 0.5])
def test_a_truncated_file_is_one_sentence(
    engine: Path, tmp_path: Path, name: str, share: float
) -> None:
    for file in FILES:
        shutil.copyfile(engine.with_name(file), tmp_path / file)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(len(content) * share)])
    with pytest.raises(StageError, match=f"{name}.* is missing or damaged"):
        backend.load(tmp_path / "engine.param", options())


def test_a_bound_call_and_a_duplicate_compute_the_same(engine: Path) -> None:
    session = backend.load(engine, options())
    inputs = random_x(3)
    expected = session.run(inputs)["y"].array
    call = session.bind(inputs)
    assert np.array_equal(session.duplicate().run(inputs)["y"].array, expected)
    call()
    assert json.loads(engine.with_name(FILES[2]).read_text())["dims"] == {
        "batch": {"min": 1, "max": 8}
    }
