from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, checker, helper, numpy_helper
from small_graphs import conv_bn, data_role, make_model, typed_network, weights, write

from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.errors import StageError
from buildsys.manifest.default_limits import AGREEMENT_LIMITS
from buildsys.onnx_graphs.emulation import emulate
from buildsys.onnx_graphs.onnx_file import save_model
from buildsys.onnx_graphs.tensor_comparison import compare
from buildsys.onnx_graphs.tensors import Tensor, load_tensors, save_case, tensor_of
from buildsys.stages.convert import stage as convert
from buildsys.stages.convert.cast_graph import convert_precision
from buildsys.workers.job import Job, StageResult

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


TOLERANCE = {
    "fp16": {"rtol": 2e-2, "cosine": 0.999, "atol": None, "top1": None},
    "bf16": {"rtol": 1e-1, "cosine": 0.99, "atol": None, "top1": None},
}
Arrays = dict[str, np.ndarray]


def convert_file(
    folder: Path,
    model: onnx.ModelProto,
    precision: str,
    cases: dict[str, Arrays] | None = None,
    exclude: Sequence[str] = (),
    **changed: Tensor,
) -> tuple[StageResult, Path]:
    """Convert a file with golden outputs of ``model``, replaced by ``changed``."""
    source = write(folder / "simplify", model)
    out = folder / "convert" / precision
    out.mkdir(parents=True, exist_ok=True)
    golden = {}
    for case, arrays in (cases or {"opt": some_inputs(model)}).items():
        golden[f"case.{case}"] = folder / f"{case}.npz"
        inputs = {name: tensor_of(array) for name, array in arrays.items()}
        save_case(golden[f"case.{case}"], inputs, {**outputs_of(model, arrays), **changed})
    job = Job(
        target=f"convert:m:{precision}", stage="convert", model="m", variant=precision,
        options={
            "precision": precision, "tolerance": TOLERANCE[precision],
            "cases": {role[5:]: {} for role in golden}, "exclude": exclude,
        },
        inputs={"model": source, **data_role(source), **golden},
        outputs={"model": out / "model.onnx", "result": out / "convert.json"}, project=folder,
    )  # fmt: skip
    return convert.run(job), out / "model.onnx"


def some_inputs(model: onnx.ModelProto) -> Arrays:
    """Return random values for float32 inputs, with 3 for every named size."""
    sizes = {port.name: port.type.tensor_type.shape.dim for port in model.graph.input}
    return {
        name: weights(*(dim.dim_value or 3 for dim in dims), seed=7) for name, dims in sizes.items()
    }


def outputs_of(
    model: onnx.ModelProto, inputs: Arrays, optimization: str = "disable"
) -> dict[str, Tensor]:
    graph = OrtGraph(model.SerializeToString(), session_options(optimization=optimization))
    return graph.run({name: tensor_of(array) for name, array in inputs.items()})


def assert_close(
    model: onnx.ModelProto, converted: onnx.ModelProto, inputs: Arrays, rtol: float
) -> None:
    expected, actual = outputs_of(model, inputs), outputs_of(converted, inputs)
    assert expected.keys() == actual.keys()
    for name, tensor in expected.items():
        found = compare(actual[name], tensor, {"rtol": rtol})
        assert found.passed, f"{name}: {found.problem}"


def converted_in_memory(
    model: onnx.ModelProto, precision: str
) -> tuple[onnx.ModelProto, dict[str, str]]:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = convert_precision(copy, precision).kept
    checker.check_model(copy, full_check=True)
    return copy, kept


IMAGE = {"x": weights(3, 3, 8, 8, seed=9)}


def test_fp16_computes_in_half_and_keeps_its_interface(tmp_path: Path) -> None:
    result, path = convert_file(tmp_path, conv_bn(), "fp16")
    assert result.status == "passed"
    figures = result.figures
    assert figures["initializers"] == {"float16": 6}
    assert (figures["casts"], figures["kept_fp32"]) == (2, [])
    assert figures["bytes_after"] < figures["bytes_before"]
    json.dumps(figures, allow_nan=False)
    model = onnx.load(path)
    assert [
        port.type.tensor_type.elem_type for port in (*model.graph.input, *model.graph.output)
    ] == [FLOAT, FLOAT]
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
    emulated = emulate(model, "bf16")
    checker.check_model(emulated, full_check=True)
    assert_close(conv_bn(), emulated, IMAGE, rtol=2e-2)
    exact, rounded = outputs_of(conv_bn(), IMAGE)["y"], outputs_of(emulated, IMAGE)["y"]
    assert compare(rounded, exact, {}).relative > 1e-4
    assert np.array_equal(tensor_of(rounded.array, "bfloat16").values(), rounded.array)


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
    assert (
        "1 of 1 values of small would become zero; its nodes stay in float32"
        in result.figures["warnings"]
    )
    assert result.figures["initializers"] == {"float16": 1, "float32": 2}
    assert_close(model, onnx.load(path), {"x": weights(2, 4)}, rtol=2e-3)
    assert result.status == "passed", result.reason


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
    low, kept = converted_in_memory(model, "fp16")
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
    low, kept = converted_in_memory(model, "fp16")
    assert set(kept) == {"square", "sum"}
    assert [n.op_type for n in low.graph.node].count("Cast") == 4  # x, h to float32, p, y
    assert_close(model, low, {"x": weights(3, 4)}, rtol=3e-3)


def test_an_initializer_used_in_both_precisions_is_stored_in_both() -> None:
    nodes = [
        node("Mul", ["x", "k"], ["a"]),
        node("Pow", ["a", "k"], ["p"]),
        node("MatMul", ["p", "w"], ["y"]),
    ]
    stored = {"k": np.float32([2.0]), "w": weights(4, 4)}
    model = make_model(nodes, {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 4])}, stored)
    low, _ = converted_in_memory(model, "fp16")
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
    low, kept = converted_in_memory(model, "fp16")
    assert kept == {}
    assert next(t for t in low.graph.initializer if t.name == "scales").data_type == FLOAT
    assert_close(model, low, {"x": weights(2, 3, 4, 4)}, rtol=2e-3)


def test_subgraphs_stay_in_float32_and_see_the_tensors_around_them() -> None:
    branch = [
        helper.make_graph(
            [node(op, ["h", "w"], [op])], op, [], [helper.make_tensor_value_info(op, FLOAT, None)]
        )
        for op in ("MatMul", "Add")
    ]
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("If", ["flag"], ["chosen"], name="if", then_branch=branch[0], else_branch=branch[1]),
        node("Relu", ["chosen"], ["y"]),
    ]
    kinds = {"x": (FLOAT, [4, 4]), "flag": (TensorProto.BOOL, [])}, {"y": (FLOAT, [4, 4])}
    model = make_model(nodes, *kinds, {"w": weights(4, 4)})
    low, kept = converted_in_memory(model, "fp16")
    assert kept == {"if": "it has subgraphs"}
    for flag in (True, False):
        assert_close(model, low, {"x": weights(4, 4), "flag": np.array(flag)}, rtol=3e-3)


def with_function() -> onnx.ModelProto:
    body = [node("Constant", [], ["half"], value_float=0.5), node("Mul", ["a", "half"], ["b"])]
    function = helper.make_function(
        "my", "Halve", ["a"], ["b"], body, [helper.make_opsetid("", 17)]
    )
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Halve", ["h"], ["z"], domain="my", name="f"),
        node("Relu", ["z"], ["y"]),
    ]
    kinds = {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 4])}
    more = {"functions": [function], "opsets": [helper.make_opsetid("my", 1)]}
    return make_model(nodes, *kinds, {"w": weights(4, 4)}, **more)


def test_local_functions_stay_in_float32(tmp_path: Path) -> None:
    low, kept = converted_in_memory(with_function(), "fp16")
    assert kept["f"] == "ONNX does not define the operator"
    assert_close(with_function(), low, {"x": weights(3, 4)}, rtol=3e-3)
    result, _ = convert_file(tmp_path, with_function(), "bf16")  # MatMul has bfloat16 in opset 17
    assert result.figures["opset"] == 17
    assert "opset 17 is kept" in result.figures["warnings"][0]


def test_an_unconvertible_graph_is_an_error_with_the_reason(tmp_path: Path) -> None:
    model = with_function()
    model.graph.node[0].CopyFrom(node("Conv", ["x", "w"], ["h"], name="conv"))
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.shape.CopyFrom(
            helper.make_tensor_value_info("s", FLOAT, ["n", 4, 1, 1]).type.tensor_type.shape
        )
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights(4, 4, 1, 1), "w"))
    with pytest.raises(
        StageError,
        match="conv stays in float32, because Conv does not support bfloat16 in this opset",
    ):
        convert_file(tmp_path, model, "bf16")
    integers = make_model(
        [node("Add", ["x", "x"], ["y"])], {"x": (INT64, [2])}, {"y": (INT64, [2])}
    )
    with pytest.raises(StageError, match="no expensive operator can compute in float16"):
        convert_file(tmp_path, integers, "fp16", {"opt": {"x": np.arange(2)}})


def test_external_data_is_read_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "save_model", partial(save_model, inline_limit=0))
    large = conv_bn()
    fc = next(tensor for tensor in large.graph.initializer if tensor.name == "fc")
    fc.CopyFrom(numpy_helper.from_array(weights(400, 4, seed=4), "fc"))
    large.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 400
    source = tmp_path / "simplify" / "model.onnx"
    source.parent.mkdir()
    inputs = {"x": tensor_of(IMAGE["x"])}
    save_case(tmp_path / "opt.npz", inputs, outputs_of(large, IMAGE))
    onnx.save(
        large, source, save_as_external_data=True, location="model.onnx.data", size_threshold=0
    )
    out = tmp_path / "model.onnx"
    options = {"precision": "fp16", "tolerance": TOLERANCE["fp16"], "cases": {"opt": {}}}
    roles = {"model": source, "case.opt": tmp_path / "opt.npz"}
    outputs = {"model": out, "result": tmp_path / "r.json"}
    result = convert.run(Job("c", "convert", "m", "fp16", options, roles, outputs, tmp_path))
    assert result.status == "passed", result.reason
    assert out.with_name("model.onnx.data").stat().st_size >= 3200
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["model.onnx", "model.onnx.data", "opt.npz", "simplify"]
    found = OrtGraph(out).run(inputs)["y"]
    assert compare(found, load_tensors(tmp_path / "opt.npz")["out.y"], TOLERANCE["fp16"]).passed


# --- what the converted graph computes -----------------------------------------------------------


def overflowing() -> onnx.ModelProto:
    """Return an identity with intermediate values beyond float16."""
    stored = {"w": np.eye(4, dtype=np.float32), "k": np.float32([1000])}
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="product"),
        node("Mul", ["h", "k"], ["a"], name="up"),
        node("Mul", ["a", "k"], ["b"], name="further up"),
        node("Div", ["b", "k"], ["c"], name="down"),
        node("Div", ["c", "k"], ["y"], name="further down"),
    ]
    return make_model(nodes, {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 4])}, stored)


def test_an_overflow_on_the_way_fails_and_names_the_node(tmp_path: Path) -> None:
    small = np.float32([[1e-3, 2e-3, 0, 1e-2]])
    cases = {
        "min": {"x": small},
        "opt": {"x": np.float32([[0.5, 0.25, -0.5, 0.125], [0, 0, 0, 0]])},
    }
    result, path = convert_file(tmp_path, overflowing(), "fp16", cases)
    assert result.status == "failed"
    assert result.reason == (
        "the fp16 graph overflows: b, of Mul (node further up), is not finite in fp16, and y"
        " differs in case opt of the fp16 graph: at [0, 0] ONNX Runtime has inf and the original"
        " model 0.5 (4 of 8 elements are NaN or infinite)"
    )
    assert result.hint == (
        "`buildsys debug --fp32-nodes m:ENGINE` finds the nodes that must stay in fp32, and"
        " precision: auto-fp16 keeps them there; bf16 has the range of float32"
    )
    figures = result.figures
    json.dumps(figures, allow_nan=False)
    assert figures["overflow"] == {"node": "further up", "tensor": "b"}
    assert figures["cases"]["min"]["y"]["passed"] is True
    assert figures["cases"]["opt"]["y"] == {
        "max_abs": None, "relative": None, "cosine": None, "top1": None, "passed": False
    }  # fmt: skip
    (failure,) = figures["failures"]
    assert (failure["case"], failure["output"], failure["index"]) == ("opt", "y", [0, 0])
    assert (failure["actual"], failure["expected"]) == ("inf", 0.5)
    kept = load_tensors(path.parent / "failed" / "fp16-opt.npz")
    assert set(kept) == {"in.x", "expected.y", "actual.y"}
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["failed", "model.onnx"]
    # which ONNX Runtime alone does not show
    assert np.array_equal(OrtGraph(path).run({"x": tensor_of(small)})["y"].array.round(6), small)


def test_excluded_nodes_stay_in_float32_and_do_not_overflow(tmp_path: Path) -> None:
    cases = {"opt": {"x": np.float32([[0.5, 0.25, -0.5, 0.125]])}}
    result, path = convert_file(
        tmp_path, overflowing(), "fp16", cases, exclude=("further up", "down")
    )
    assert (result.status, result.reason) == ("passed", "")
    reasons = result.figures["kept_reasons"]
    assert reasons == {name: f"excluded by {name}" for name in ("further up", "down")}
    types = {one.output[0] for one in onnx.load(path).graph.node if one.op_type == "Cast"}
    assert len(types) == result.figures["casts"]
    with pytest.raises(StageError, match=r"convert.exclude: dwon matches no node; did you mean"):
        convert_file(tmp_path, overflowing(), "fp16", cases, exclude=("dwon",))


def test_bf16_has_the_range(tmp_path: Path) -> None:
    result, _ = convert_file(tmp_path, overflowing(), "bf16")
    assert result.status == "passed", result.reason
    assert result.figures["tolerance"] == {**TOLERANCE["bf16"], **AGREEMENT_LIMITS["bf16"]}
    assert 1e-3 < result.figures["cases"]["opt"]["y"]["relative"] < 1e-1


def test_an_overflow_that_ends_in_a_finite_number_is_found(tmp_path: Path) -> None:
    model = overflowing()
    model.graph.node[-1].CopyFrom(node("Reciprocal", ["c"], ["y"], name="last"))
    result, _ = convert_file(
        tmp_path, model, "fp16", {"opt": {"x": np.float32([[0.5, 0.25, -0.5, 0.125]])}}
    )
    assert result.status == "failed"
    assert result.reason.startswith(
        "the fp16 graph overflows: b, of Mul (node further up), is not finite in fp16, and y"
    )
    assert "ONNX Runtime has 0 and the original model 0.0" in result.reason


def test_an_overflow_in_a_cast_names_its_input(tmp_path: Path) -> None:
    stored = {"big": np.float32([1e6]), "w": weights(4, 4)}
    nodes = [
        node("Mul", ["x", "big"], ["h"], name="grow"),
        node("MatMul", ["h", "w"], ["y"], name="product"),
    ]
    model = make_model(nodes, {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 4])}, stored)
    result, _ = convert_file(tmp_path / "node", model, "fp16")
    assert result.reason.startswith(
        "the fp16 graph overflows: h, of Mul (node grow), is not finite in fp16, and y"
    )
    del model.graph.node[0]
    model.graph.node[0].input[0] = "x"
    result, _ = convert_file(
        tmp_path / "input", model, "fp16", {"opt": {"x": np.full((1, 4), 1e5, np.float32)}}
    )
    assert result.reason.startswith(
        "the fp16 graph overflows: x, an input of the graph, is not finite in fp16, and y"
    )
    assert result.figures["overflow"] == {"node": "", "tensor": "x"}


def test_infinities_that_belong_to_the_network_are_no_overflow(tmp_path: Path) -> None:
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Add", ["h", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["y"], axis=1),
    ]
    kinds = {"x": (FLOAT, [4, 4])}, {"y": (FLOAT, [4, 4])}
    model = make_model(nodes, *kinds, {"w": weights(4, 4), "mask": mask})
    result, _ = convert_file(tmp_path / "right", model, "fp16")
    assert result.status == "passed", result.reason
    wrong, _ = convert_file(
        tmp_path / "wrong", model, "fp16", y=tensor_of(np.full((4, 4), 0.25, np.float32))
    )
    assert wrong.status == "failed"
    assert wrong.reason.startswith("y differs in case opt of the fp16 graph: at [")
    assert "verify.fp16" in wrong.hint
    assert wrong.figures["overflow"] is None


def test_a_network_in_the_requested_precision_is_unchanged(tmp_path: Path) -> None:
    for precision, elem_type in (("fp16", TensorProto.FLOAT16), ("bf16", TensorProto.BFLOAT16)):
        model = typed_network(elem_type)
        low = onnx.ModelProto()
        low.CopyFrom(model)
        assert convert_precision(low, precision).casts == 0
        assert low.graph == model.graph


def test_a_network_in_another_16_bit_type_is_refused_with_a_remedy() -> None:
    with pytest.raises(StageError, match="computes in another 16-bit type than float16") as error:
        convert_precision(typed_network(TensorProto.BFLOAT16), "fp16")
    assert error.value.hint == "precision: fp32 keeps the types of the network"


LOWEST = np.float32(np.finfo(np.float32).min)


def attention(kind: str, lowest: float) -> onnx.ModelProto:
    """Return an attention with the integer input ``keep``: 0 masks a token.

    ``kind`` is how the mask is applied: filled, added, or from the body of an If.
    """
    stored = {
        "w": weights(4, 4), "v": weights(4, 4, seed=1), "zero": np.array(0, np.int64),
        "lowest": np.float32(lowest), "one": np.float32(1), "nothing": np.float32(0),
        "true": np.array(True),
    }  # fmt: skip
    filled = [
        node("Greater", ["keep", "zero"], ["is_kept"]),
        node("Where", ["is_kept", "scores", "lowest"], ["masked"]),
    ]
    selected = [
        node("Greater", ["keep", "zero"], ["is_kept"]),
        node("Where", ["is_kept", "nothing", "lowest"], ["bias"]),
        node("Add", ["scores", "bias"], ["masked"]),
    ]
    scaled = [
        node("Cast", ["keep"], ["kept"], to=FLOAT),
        node("Sub", ["one", "kept"], ["dropped"]),
        node("Mul", ["dropped", "lowest"], ["bias"]),
        node("Add", ["scores", "bias"], ["masked"]),
    ]
    constant = numpy_helper.from_array(np.full((3, 3), lowest, np.float32))
    body = helper.make_graph(
        [node("Constant", [], ["bias_of_body"], value=constant)],
        "body", [], [helper.make_tensor_value_info("bias_of_body", FLOAT, [3, 3])],
    )  # fmt: skip
    branch = [
        node("If", ["true"], ["bias"], then_branch=body, else_branch=body),
        node("Greater", ["keep", "zero"], ["is_kept"]),
        node("Where", ["is_kept", "scores", "bias"], ["masked"]),
    ]
    ways = {"filled": filled, "selected": selected, "scaled": scaled, "branch": branch}
    nodes = [
        node("MatMul", ["x", "w"], ["q"]),
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("MatMul", ["q", "t"], ["scores"]),
        *ways[kind],
        node("Softmax", ["masked"], ["p"], axis=1),
        node("MatMul", ["x", "v"], ["values"]),
        node("MatMul", ["p", "values"], ["y"]),
    ]
    kinds = {"x": (FLOAT, [3, 4]), "keep": (INT64, [3, 3])}, {"y": (FLOAT, [3, 4])}
    return make_model(nodes, *kinds, stored)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("kind", ["filled", "selected", "scaled", "branch"])
@pytest.mark.parametrize("lowest", [LOWEST, -1e9])
def test_fully_masked_rows_stay_finite(
    tmp_path: Path, kind: str, precision: str, lowest: float
) -> None:
    keep = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]], np.int64)
    cases = {"opt": {"x": weights(3, 4, seed=2), "keep": keep}}
    result, path = convert_file(tmp_path, attention(kind, lowest), precision, cases)
    assert result.status == "passed", result.reason
    checker.check_model(onnx.load(path), full_check=True)
    clamped = any("limited to the range" in warning for warning in result.figures["warnings"])
    assert clamped == (precision == "fp16" or lowest == LOWEST)


def test_masks_are_limited_below_opset_11_too() -> None:
    model = attention("filled", LOWEST)
    model.opset_import[0].version = 10
    low, _ = converted_in_memory(model, "fp16")
    inputs = {"x": weights(3, 4), "keep": np.zeros((3, 3), np.int64)}
    assert_close(model, low, inputs, rtol=1e-2)
