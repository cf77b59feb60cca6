from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, checker, helper, numpy_helper
from small_graphs import conv_bn, data_role, make_model, weights, write

from buildsys.backends.ort_session import OrtGraph, session_options
from buildsys.compare import compare
from buildsys.errors import StageError
from buildsys.stages import convert
from buildsys.stages.bf16 import emulate_bf16
from buildsys.stages.precision import convert_precision
from buildsys.tensors import Tensor, tensor_of
from buildsys.worker.job import Job, StageResult

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def convert_file(folder: Path, model: onnx.ModelProto, precision: str) -> tuple[StageResult, Path]:
    source = write(folder / "simplify", model)
    out = folder / "convert" / precision
    out.mkdir(parents=True, exist_ok=True)
    job = Job(
        target=f"convert:m:{precision}", stage="convert", model="m", variant=precision,
        options={"precision": precision}, inputs={"model": source, **data_role(source)},
        outputs={"model": out / "model.onnx", "result": out / "convert.json"}, project=folder,
    )  # fmt: skip
    return convert.run(job), out / "model.onnx"


def outputs_of(
    model: onnx.ModelProto, inputs: dict[str, np.ndarray], optimization: str = "disable"
) -> dict[str, Tensor]:
    graph = OrtGraph(model.SerializeToString(), session_options(optimization=optimization))
    return graph.run({name: tensor_of(array) for name, array in inputs.items()})


def assert_close(
    model: onnx.ModelProto, converted: onnx.ModelProto, inputs: dict[str, np.ndarray], rtol: float
) -> None:
    expected, actual = outputs_of(model, inputs), outputs_of(converted, inputs)
    assert expected.keys() == actual.keys()
    for name, tensor in expected.items():
        found = compare(actual[name], tensor, {"rtol": rtol})
        assert found.passed, f"{name}: {found.problem}"


def converted_in_memory(model: onnx.ModelProto, dtype: str) -> tuple[onnx.ModelProto, dict[str, str]]:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = convert_precision(copy, dtype).kept
    checker.check_model(copy, full_check=True)
    return copy, kept


IMAGE = {"x": weights(3, 3, 8, 8, seed=9)}


def test_fp16_computes_in_half_and_keeps_its_interface(tmp_path: Path) -> None:
    result, path = convert_file(tmp_path, conv_bn(), "fp16")
    assert result.status == "passed"
    figures = result.figures
    assert figures["initializers"] == {"float16": 6}
    assert (figures["casts"], figures["converted"], figures["kept_fp32"]) == (2, 8, [])
    assert figures["bytes_after"] < figures["bytes_before"]
    json.dumps(figures, allow_nan=False)
    model = onnx.load(path)
    assert [port.type.tensor_type.elem_type for port in (*model.graph.input, *model.graph.output)] == [FLOAT, FLOAT]
    assert_close(conv_bn(), model, IMAGE, rtol=3e-3)
    exact, half = outputs_of(conv_bn(), IMAGE)["y"], outputs_of(model, IMAGE)["y"]
    assert not np.array_equal(exact.array, half.array)
    again, other = convert_file(tmp_path / "again", conv_bn(), "fp16")
    assert other.read_bytes() == path.read_bytes()
    assert again.figures == figures


def test_bf16_raises_the_opset_and_is_emulated_on_the_cpu(tmp_path: Path) -> None:
    result, path = convert_file(tmp_path, conv_bn(17), "bf16")
    assert result.figures["opset"] == 22
    assert result.figures["initializers"] == {"bfloat16": 6}
    assert "opset 17 was raised to 22" in result.figures["warnings"][0]
    model = onnx.load(path)
    with pytest.raises(StageError, match="no kernel"):
        OrtGraph(path)
    emulated = emulate_bf16(model)
    checker.check_model(emulated, full_check=True)
    assert_close(conv_bn(), emulated, IMAGE, rtol=2e-2)
    exact, rounded = outputs_of(conv_bn(), IMAGE)["y"], outputs_of(emulated, IMAGE)["y"]
    assert compare(rounded, exact, {}).relative > 1e-4
    assert np.array_equal(tensor_of(rounded.array, "bfloat16").values(), rounded.array)


@pytest.mark.parametrize("optimization", ["disable", "all"])
def test_emulation_rounds_after_every_operator(optimization: str) -> None:
    nodes = [node("Mul", ["x", "k"], ["a"]), node("Add", ["a", "x"], ["b"]), node("Sub", ["b", "k"], ["y"])]
    k = np.float32(1.0078125)  # is a bfloat16
    model = make_model(nodes, {"x": (FLOAT, [1000])}, {"y": (FLOAT, [1000])}, {"k": np.array([k])}, opset=22)
    low, _ = converted_in_memory(model, "bfloat16")

    def bf16(values: np.ndarray) -> np.ndarray:
        return tensor_of(values, "bfloat16").values()

    x = weights(1000)
    start = bf16(x)
    expected = bf16(bf16(bf16(start * k) + start) - k)
    actual = outputs_of(emulate_bf16(low), {"x": x}, optimization)["y"].array
    assert np.array_equal(actual, expected)
    assert not np.array_equal(actual, bf16(start * k + start - k))  # rounding once would show


def test_emulation_keeps_bfloat16_inputs_and_outputs() -> None:
    bf16 = TensorProto.BFLOAT16
    model = make_model(
        [node("Add", ["x", "x"], ["a"]), node("Relu", ["a"], ["y"])],
        {"x": (bf16, [3])},
        {"a": (bf16, [3]), "y": (bf16, [3])},
        opset=22,
    )
    emulated = emulate_bf16(model)
    checker.check_model(emulated, full_check=True)
    x = tensor_of(np.array([1.0, -2.0, 0.5]), "bfloat16")
    found = OrtGraph(emulated.SerializeToString()).run({"x": x})
    assert (found["a"].dtype, found["a"].values().tolist()) == ("bfloat16", [2.0, -4.0, 1.0])
    assert found["y"].values().tolist() == [2.0, 0.0, 1.0]


def test_weights_beyond_float16_keep_their_nodes_in_float32(tmp_path: Path) -> None:
    stored = {"big": np.float32([1e6]), "small": np.float32([1e-12]), "w": weights(4, 4)}
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="product"),
        node("Div", ["h", "big"], ["a"], name="scaled"),
        node("Add", ["a", "small"], ["y"], name="epsilon"),
    ]
    model = make_model(nodes, {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 4])}, stored)
    result, path = convert_file(tmp_path, model, "fp16")
    assert result.figures["kept_fp32"] == ["scaled", "epsilon"]
    assert "big has values up to 1e+06; its nodes stay in float32" in result.figures["warnings"]
    assert "1 of 1 values of small would become zero; its nodes stay in float32" in result.figures["warnings"]
    assert result.figures["initializers"] == {"float16": 1, "float32": 2}
    assert_close(model, onnx.load(path), {"x": weights(2, 4)}, rtol=2e-3)


def test_lost_weights_are_counted(tmp_path: Path) -> None:
    w = np.full((10, 10), 0.5, np.float32)
    w[0, :5] = 1e-9
    model = make_model(
        [node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, ["n", 10])}, {"y": (FLOAT, ["n", 10])}, {"w": w}
    )
    result, _ = convert_file(tmp_path, model, "fp16")
    assert result.figures["flushed_to_zero"] == {"values": 5, "of": 100}
    assert "5 of 100 non-zero weights became zero" in result.figures["warnings"]


def test_sizes_and_positions_stay_in_float32() -> None:
    stored = {"two": np.float32(2).reshape(()), "w": weights(4, 4), "axis": np.array([0], np.int64)}
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Shape", ["h"], ["shape"]),
        node("Cast", ["shape"], ["float_shape"], name="to_float", to=FLOAT),
        node("Div", ["float_shape", "two"], ["half"], name="halve"),
        node("Floor", ["half"], ["floor"], name="floor"),
        node("Cast", ["floor"], ["size"], name="to_int", to=INT64),
        node("Slice", ["h", "axis", "size"], ["y"]),
    ]
    stored["axis"] = np.array([0, 0], np.int64)
    model = make_model(nodes, {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["a", "b"])}, stored)
    low, kept = converted_in_memory(model, "float16")
    assert set(kept) == {"to_float", "halve", "floor", "to_int"}
    x = {"x": weights(5001, 4)}  # half of it is no float16
    assert_close(model, low, x, rtol=2e-3)


def test_one_tensor_in_both_precisions_is_cast_once() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="product"),
        node("Pow", ["h", "w0"], ["p"], name="square"),  # stays in float32
        node("CumSum", ["h", "axis"], ["c"], name="sum"),
        node("Relu", ["h"], ["r"], name="relu"),
        node("Add", ["p", "r"], ["y"], name="add"),
    ]
    stored = {"w": weights(4, 4), "w0": np.float32([2.0]), "axis": np.array(1)}
    outputs = {"y": (FLOAT, ["n", 4]), "h": (FLOAT, ["n", 4]), "c": (FLOAT, ["n", 4])}
    model = make_model(nodes, {"x": (FLOAT, ["n", 4])}, outputs, stored)
    low, kept = converted_in_memory(model, "float16")
    assert set(kept) == {"square", "sum"}
    assert [n.op_type for n in low.graph.node].count("Cast") == 4  # x, h to float32, p, y
    assert_close(model, low, {"x": weights(3, 4)}, rtol=3e-3)


def test_an_initializer_that_both_need_is_stored_in_both() -> None:
    nodes = [node("Mul", ["x", "k"], ["a"]), node("Pow", ["a", "k"], ["p"]), node("MatMul", ["p", "w"], ["y"])]
    stored = {"k": np.float32([2.0]), "w": weights(4, 4)}
    model = make_model(nodes, {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 4])}, stored)
    low, _ = converted_in_memory(model, "float16")
    types = {t.name: t.data_type for t in low.graph.initializer}
    assert types == {"k": FLOAT, "k_float16": TensorProto.FLOAT16, "w": TensorProto.FLOAT16}
    assert_close(model, low, {"x": weights(3, 4)}, rtol=3e-3)


def test_constants_and_resize_scales() -> None:
    nodes = [
        node("Constant", [], ["scales"], value_floats=[1.0, 1.0, 2.0, 2.0]),
        node("Constant", [], ["one"], value=numpy_helper.from_array(np.ones(1, np.float32))),
        node("Resize", ["x", "", "scales"], ["big"], name="resize", mode="nearest"),
        node("Add", ["big", "one"], ["sum"]),
        node("Shape", ["sum"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["zeros"]),
        node("Conv", ["sum", "w"], ["conv"], pads=[1, 1, 1, 1]),
        node("Sub", ["sum", "zeros"], ["z"]),
        node("Concat", ["conv", "z"], ["y"], axis=1),
    ]
    kinds = {"x": (FLOAT, ["n", 3, 4, 4])}, {"y": (FLOAT, ["n", 6, 8, 8])}
    model = make_model(nodes, *kinds, {"w": weights(3, 3, 3, 3)})
    model.graph.value_info.append(helper.make_tensor_value_info("one", FLOAT, [1]))
    low, kept = converted_in_memory(model, "float16")
    assert kept == {}
    assert next(t for t in low.graph.initializer if t.name == "scales").data_type == FLOAT
    assert_close(model, low, {"x": weights(2, 3, 4, 4)}, rtol=2e-3)


def test_subgraphs_stay_in_float32_and_see_the_tensors_around_them() -> None:
    branch = [
        helper.make_graph([node(op, ["h", "w"], [op])], op, [], [helper.make_tensor_value_info(op, FLOAT, None)])
        for op in ("MatMul", "Add")
    ]
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("If", ["flag"], ["chosen"], name="if", then_branch=branch[0], else_branch=branch[1]),
        node("Relu", ["chosen"], ["y"]),
    ]
    kinds = {"x": (FLOAT, [4, 4]), "flag": (TensorProto.BOOL, [])}, {"y": (FLOAT, [4, 4])}
    model = make_model(nodes, *kinds, {"w": weights(4, 4)})
    low, kept = converted_in_memory(model, "float16")
    assert kept == {"if": "it has subgraphs"}
    for flag in (True, False):
        assert_close(model, low, {"x": weights(4, 4), "flag": np.array(flag)}, rtol=3e-3)


def with_function() -> onnx.ModelProto:
    body = [node("Constant", [], ["half"], value_float=0.5), node("Mul", ["a", "half"], ["b"])]
    function = helper.make_function("my", "Halve", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Halve", ["h"], ["z"], domain="my", name="f"),
        node("Relu", ["z"], ["y"]),
    ]
    kinds = {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 4])}
    return make_model(nodes, *kinds, {"w": weights(4, 4)}, functions=[function], opsets=[helper.make_opsetid("my", 1)])


def test_local_functions_stay_in_float32(tmp_path: Path) -> None:
    low, kept = converted_in_memory(with_function(), "float16")
    assert kept["f"] == "ONNX does not define the operator"
    assert_close(with_function(), low, {"x": weights(3, 4)}, rtol=3e-3)
    result, _ = convert_file(tmp_path, with_function(), "bf16")  # MatMul has bfloat16 in opset 17
    assert result.figures["opset"] == 17
    assert "opset 17 stays" in result.figures["warnings"][0]


def test_what_cannot_be_converted_is_an_error_that_says_why(tmp_path: Path) -> None:
    model = with_function()
    model.graph.node[0].CopyFrom(node("Conv", ["x", "w"], ["h"], name="conv"))
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.shape.CopyFrom(
            helper.make_tensor_value_info("s", FLOAT, ["n", 4, 1, 1]).type.tensor_type.shape
        )
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights(4, 4, 1, 1), "w"))
    with pytest.raises(StageError, match="conv stays in float32, because Conv does not take bfloat16 in this opset"):
        convert_file(tmp_path, model, "bf16")
    integers = make_model([node("Add", ["x", "x"], ["y"])], {"x": (INT64, [2])}, {"y": (INT64, [2])})
    with pytest.raises(StageError, match="no operator that does heavy work can compute in float16"):
        convert_file(tmp_path, integers, "fp16")


def test_external_data_is_read_and_written(tmp_path: Path) -> None:
    source = tmp_path / "simplify" / "model.onnx"
    source.parent.mkdir()
    onnx.save(conv_bn(), source, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    out = tmp_path / "model.onnx"
    job = Job("c", "convert", "m", "fp16", {"precision": "fp16"}, {"model": source}, {"model": out}, tmp_path)
    assert convert.run(job).status == "passed"
    assert_close(conv_bn(), onnx.load(out), IMAGE, rtol=3e-3)
