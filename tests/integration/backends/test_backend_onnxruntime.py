"""Engines of ONNX Runtime are equal to their source graphs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from engine_jobs import engine_options, random_x, refused_nodes, request
from onnx import TensorProto, helper
from small_graphs import conv_bn, make_model, splits_around_a_loop, typed_network, weights, write

from buildsys.backends.onnxruntime import backend
from buildsys.backends.onnxruntime.session import OrtGraph, explain, session_options
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.onnx_file import save_model
from buildsys.onnx_graphs.tensors import Tensor, tensor_of
from buildsys.stages.convert.typed import convert_precision
from buildsys.system.cpu import usable_cores

IMAGE = ["batch", 3, 8, 8]
needs_no_cuda = pytest.mark.skipif(
    "CUDAExecutionProvider" in ort.get_available_providers(),
    reason="checks what is said without CUDA",
)


def options(**fields: Any) -> dict[str, Any]:
    return engine_options("onnxruntime", **fields)


def build(folder: Path, model: onnx.ModelProto, **fields: Any) -> tuple[Path, dict[str, Any]]:
    asked = request(write(folder, model), folder / "engine", options(**fields))
    backend.prepare(asked.options)
    facts = backend.build(asked)
    return asked.engine, {**facts, **backend.describe(asked.engine, asked.options)}


def run(engine: Path, inputs: dict[str, Tensor], **fields: Any) -> dict[str, Tensor]:
    session = backend.load(engine, options(**fields))
    try:
        return session.run(inputs)
    finally:
        session.close()


@pytest.mark.parametrize("level", ["basic", "all"])
def test_a_loaded_engine_computes_the_same_as_the_saving_session(
    tmp_path: Path, level: str
) -> None:
    engine, facts = build(tmp_path, conv_bn(), graph_optimization_level=level)
    inputs = random_x(5)
    same = OrtGraph(
        tmp_path / "model.onnx",
        session_options(optimization=level, intra_op_threads=usable_cores()),
    )
    assert np.array_equal(run(engine, inputs)["y"].array, same.run(inputs)["y"].array)
    assert facts["settings"]["graph_optimization_level"] == level


def test_an_engine_that_cannot_be_loaded_again_is_optimized_less(tmp_path: Path) -> None:
    model = splits_around_a_loop()
    engine, facts = build(tmp_path, model)
    x = {"x": tensor_of(np.arange(6, dtype=np.float32).reshape(3, 2))}
    expected = OrtGraph(model.SerializeToString()).run(x)
    for name, tensor in run(engine, x).items():
        assert np.array_equal(tensor.array, expected[name].array)
    assert facts["settings"]["graph_optimization_level"] == "basic"
    first, *others = facts["messages"]
    problem = (
        "ONNX Runtime cannot use the graph optimized up to all, so it is optimized up to basic"
    )
    assert first.startswith(problem)
    assert "single static assignment" in first
    assert str(tmp_path) not in first
    assert not any("kind of processor" in message for message in others)


def test_external_data_of_a_refused_level_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_INLINE_LIMIT_BYTES", 0)
    engine, facts = build(tmp_path, splits_around_a_loop())
    assert facts["settings"]["graph_optimization_level"] == "basic"
    assert {file.name for file in engine.parent.iterdir()} <= {"engine.onnx", "engine.onnx.data"}
    assert run(engine, {"x": tensor_of(np.ones((1, 2), np.float32))})


def test_the_facts_are_those_of_the_optimized_graph(tmp_path: Path) -> None:
    _, plain = build(tmp_path / "plain", conv_bn(), graph_optimization_level="disable")
    _, best = build(tmp_path / "best", conv_bn())
    assert plain["layers"]["BatchNormalization"] == 1
    assert "BatchNormalization" not in best["layers"]
    assert sum(best["layers"].values()) < sum(plain["layers"].values())
    assert best["inputs"] == [{"name": "x", "dtype": "float32", "shape": IMAGE}]
    assert best["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["batch", 5]}]
    assert best["precision_shares"] == {"layers": {"float32": 1.0}, "weights": {"float32": 1.0}}
    assert any("kind of processor" in message for message in best["messages"])
    assert json.loads(json.dumps(best)) == best


@pytest.mark.parametrize(
    ("precision", "level", "errors", "message"),
    [
        ("fp16", "basic", (0, 1e-2), "float16 in float32"),
        ("bf16", "all", (1e-4, 5e-2), "bfloat16 is emulated"),
    ],
)
def test_a_graph_of_16_bits_on_the_cpu_explains_its_arithmetic(
    tmp_path: Path, precision: str, level: str, errors: tuple[float, float], message: str
) -> None:
    typed = conv_bn()
    convert_precision(typed, precision)
    engine, facts = build(tmp_path, typed, precision=precision, graph_optimization_level=level)
    inputs = random_x(2)
    exact = OrtGraph(conv_bn().SerializeToString()).run(inputs)["y"].array
    error = np.abs(run(engine, inputs, precision=precision)["y"].array - exact).max()
    least, most = (limit * np.abs(exact).max() for limit in errors)
    assert least < error < most
    assert precision == "bf16" or facts["precision_shares"]["weights"]["float16"] > 0.9
    assert any(message in text for text in facts["messages"])
    assert [path.name for path in engine.parent.iterdir()] == ["engine.onnx"]


@pytest.mark.parametrize("ports", [TensorProto.FLOAT, TensorProto.BFLOAT16])
def test_a_bf16_network_is_emulated_in_its_own_types(tmp_path: Path, ports: int) -> None:
    engine, facts = build(tmp_path, typed_network(TensorProto.BFLOAT16, ports))
    dtype = "float32" if ports == TensorProto.FLOAT else "bfloat16"
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    found = run(engine, {"x": tensor_of(x, dtype)})["y"]
    assert found.dtype == dtype
    first, second = weights(8, 16), weights(16, 5)
    exact = np.maximum(x @ first, 0) @ second
    assert 1e-5 < np.abs(found.values() - exact).max() / np.abs(exact).max() < 3e-2
    assert any("bfloat16 is emulated" in message for message in facts["messages"])


def test_every_field_reaches_the_session(tmp_path: Path) -> None:
    fields = {
        "intra_op_threads": 1, "inter_op_threads": 2, "execution_mode": "parallel",
        "spinning": False,
        "session_config": {"session.set_denormal_as_zero": "1"},
    }  # fmt: skip
    engine, facts = build(tmp_path, conv_bn(), **fields)
    session = backend.load(engine, options(**fields))
    used = session.session.get_session_options()
    assert (used.intra_op_num_threads, used.inter_op_num_threads) == (1, 2)
    assert used.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert used.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert used.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert used.get_session_config_entry("session.set_denormal_as_zero") == "1"
    assert {name: facts["settings"][name] for name in fields} == fields
    session.close()


@pytest.mark.parametrize(
    ("op", "shape", "weight_shape"), [("Conv", (4, 1, 1), (2, 4, 1, 1)), ("MatMul", (4,), (4, 2))]
)
def test_int8_sums_do_not_overflow(
    tmp_path: Path, op: str, shape: tuple[int, ...], weight_shape: tuple[int, ...]
) -> None:
    """Processors without VNNI add two products of 8 bits in 16."""
    node = helper.make_node
    model = make_model(
        [
            node("QuantizeLinear", ["x", "one", "zero"], ["x_int8"]),
            node("DequantizeLinear", ["x_int8", "one", "zero"], ["x_float"]),
            node("DequantizeLinear", ["w", "one", "zero"], ["w_float"]),
            node(op, ["x_float", "w_float"], ["sum"]),
            node("QuantizeLinear", ["sum", "large", "zero"], ["y_int8"]),
            node("DequantizeLinear", ["y_int8", "large", "zero"], ["y"]),
        ],
        {"x": (TensorProto.FLOAT, ["batch", *shape])},
        {"y": (TensorProto.FLOAT, ["batch", 2, *shape[1:]])},
        {
            "w": np.full(weight_shape, 127, np.int8),
            "one": np.array(1, np.float32),
            "large": np.array(600, np.float32),
            "zero": np.array(0, np.int8),
        },
    )
    engine, facts = build(tmp_path, model)
    assert any("QLinear" in layer for layer in facts["layers"]), facts["layers"]
    inputs = {"x": tensor_of(np.full((2, *shape), 127, np.float32))}
    expected = OrtGraph(model.SerializeToString(), session_options()).run(inputs)
    assert np.array_equal(run(engine, inputs)["y"].array, expected["y"].array)


def test_int8_weights_of_an_fp32_engine_are_computed_in_float32(tmp_path: Path) -> None:
    node = helper.make_node
    model = make_model(
        [node("DequantizeLinear", ["w", "scale"], ["f"]), node("MatMul", ["x", "f"], ["y"])],
        {"x": (TensorProto.FLOAT, ["n", 64])},
        {"y": (TensorProto.FLOAT, ["n", 32])},
        {
            "w": np.random.default_rng(0).integers(-99, 99, (64, 32)).astype(np.int8),
            "scale": np.array(0.01, np.float32),
        },
    )
    engine, facts = build(tmp_path, model)
    assert "com.microsoft:MatMulNBits" in facts["layers"]
    x = {"x": tensor_of(np.random.default_rng(1).standard_normal((3, 64), np.float32))}
    expected = OrtGraph(model.SerializeToString(), session_options()).run(x)["y"].array
    assert np.allclose(run(engine, x)["y"].array, expected, rtol=1e-5, atol=1e-5)
    rounded = {"session.qdq_matmulnbits_accuracy_level": "4"}
    engine, _ = build(tmp_path, model, session_config=rounded)
    assert not np.allclose(run(engine, x)["y"].array, expected, rtol=1e-5, atol=1e-5)


def test_a_bound_call_runs_the_engine_again(tmp_path: Path) -> None:
    engine, _ = build(tmp_path, conv_bn())
    session = backend.load(engine, options())
    call = session.bind(random_x(2))
    call()
    assert call() is None
    with pytest.raises(StageError, match="the graph needs the input x"):
        session.bind({"z": random_x(2)["x"]})


def test_strings_can_be_bound_too(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"], name="same")
    text = (TensorProto.STRING, ["n"])
    engine, _ = build(tmp_path, make_model([node], {"x": text}, {"y": text}))
    session = backend.load(engine, options())
    inputs = {"x": tensor_of(["ab", "c"])}
    assert session.run(inputs)["y"].array.tolist() == ["ab", "c"]
    session.bind(inputs)()


def wide() -> onnx.ModelProto:
    """Return a product with weights of 32 kB."""
    return make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        {"x": (TensorProto.FLOAT, IMAGE)},
        {"y": (TensorProto.FLOAT, [*IMAGE[:3], 1000])},
        {"w": np.ones((8, 1000), np.float32)},
    )


def test_large_graphs_have_external_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_INLINE_LIMIT_BYTES", 1000)
    engine, facts = build(tmp_path, wide())
    assert engine.with_name("engine.onnx.data").stat().st_size >= 32_000
    assert engine.stat().st_size < 5_000
    moved = tmp_path / "published"
    engine.parent.rename(moved)
    inputs = random_x(1)
    expected = inputs["x"].array.sum(axis=-1, keepdims=True)
    assert np.allclose(run(moved / "engine.onnx", inputs)["y"].array, expected, atol=1e-5)
    assert facts["precision_shares"]["weights"] == {"float32": 1.0}


@pytest.mark.parametrize("level", ["disable", "all"])
def test_an_engine_includes_the_external_weights_of_its_source(tmp_path: Path, level: str) -> None:
    source = tmp_path / "model.onnx"
    save_model(wide(), source, inline_limit=0)
    (tmp_path / "engine").mkdir()
    asked = request(source, tmp_path / "engine", options(graph_optimization_level=level))
    backend.build(asked)
    for file in tmp_path.glob("model.onnx*"):
        file.unlink()
    inputs = random_x(1)
    expected = inputs["x"].array.sum(axis=-1, keepdims=True)
    assert np.allclose(run(asked.engine, inputs)["y"].array, expected, atol=1e-5)


def test_a_failure_in_the_body_of_a_node_names_the_inner_node() -> None:
    inner = (
        "Non-zero status code returned while running Identity node. Name:'/I' Status Message:"
        " /onnxruntime_src/core/op_kernel.cc:87 virtual OrtValue* onnxruntime::OutputMLValue(int,"
        " const TensorShape&) [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : the shape differs"
    )
    outer = "Non-zero status code returned while running If node. Name:'/If_1' Status Message: "
    error = RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : {outer}{inner}")
    problem = "ONNX Runtime cannot run the graph: Identity (node /I) failed: the shape differs"
    assert explain("cannot run the graph", error).problem == problem


def test_all_unknown_operators_are_named_at_once(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("First", ["x"], ["a"], name="one", domain="my"),
        helper.make_node("Relu", ["a"], ["b"], name="fine"),
        helper.make_node("Second", ["b"], ["y"], name="two"),
    ]
    image = (TensorProto.FLOAT, IMAGE)
    model = make_model(nodes, {"x": image}, {"y": image}, opsets=[helper.make_opsetid("my", 1)])
    with pytest.raises(StageError) as caught:
        build(tmp_path, model)
    text = str(caught.value)
    assert text.startswith(
        "model m: ONNX Runtime cannot take node 0 'one' (First): not an operator of the domain my"
    )
    assert "node 2 'two' (Second): not an operator of the domain ai.onnx" in text
    assert "fine" not in text
    refused = refused_nodes(backend, request(tmp_path / "model.onnx", tmp_path, options()))
    assert [node.operator for node in refused] == ["First", "Second"]


def test_unknown_operators_in_functions_and_branches_are_found(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    inner = helper.make_node("Inner", ["a"], ["b"], name="inner", domain="my")
    function = helper.make_function("my", "Fn", ["a"], ["b"], [inner], opsets)
    branch = helper.make_graph(
        [helper.make_node("Hidden", ["x"], ["h"], name="hidden", domain="my")],
        "branch", [], [helper.make_tensor_value_info("h", TensorProto.FLOAT, IMAGE)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Fn", ["x"], ["f"], name="call", domain="my"),
        helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=branch),
    ]
    model = make_model(
        nodes, {"x": (TensorProto.FLOAT, IMAGE), "c": (TensorProto.BOOL, [])},
        {"y": (TensorProto.FLOAT, IMAGE)},
        opsets=opsets[1:], functions=[function],
    )  # fmt: skip
    found = refused_nodes(backend, request(write(tmp_path, model), tmp_path, options()))
    assert [(node.index, node.operator, node.functions) for node in found] == [
        (1, "Hidden", ()), (1, "Hidden", ()), (0, "Inner", ("Fn",)),
    ]  # fmt: skip


def test_an_invalid_onnx_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("hello, this is no model")
    with pytest.raises(StageError) as caught:
        backend.build(request(tmp_path / "model.onnx", tmp_path, options()))
    assert str(caught.value).startswith("model m: ONNX Runtime cannot load the graph: ")
    assert "\n" not in str(caught.value)


@needs_no_cuda
def test_without_the_cuda_provider_the_engine_is_unavailable(tmp_path: Path) -> None:
    for what in (
        lambda: backend.prepare(options(provider="cuda")),
        lambda: backend.load(tmp_path, options(provider="cuda")),
    ):
        with pytest.raises(Unavailable) as caught:
            what()
        assert caught.value.problem.endswith("has no cuda provider")
        assert "onnxruntime-gpu" in caught.value.hint
