import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, checker, helper
from small_graphs import conv_bn, data_role, parse, typed_network, weights, write

from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.errors import StageError
from buildsys.manifest.default_limits import AGREEMENT_LIMITS
from buildsys.onnx_graphs.tensor_comparison import compare
from buildsys.onnx_graphs.tensor_types import emulate
from buildsys.onnx_graphs.tensors import Tensor, load_tensors, save_case, tensor_of
from buildsys.stages.convert import stage as convert
from buildsys.stages.convert.typed import convert_precision
from buildsys.workers.job import Job, StageResult

FLOAT = TensorProto.FLOAT


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
        comparison = compare(actual[name], tensor, {"rtol": rtol})
        assert comparison.passed, f"{name}: {comparison.problem}"


def converted_in_memory(
    model: onnx.ModelProto, precision: str
) -> tuple[onnx.ModelProto, dict[str, str]]:
    low = copy(model)
    kept = convert_precision(low, precision).reasons
    checker.check_model(low, full_check=True)
    return low, kept


def copy(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


IMAGE = {"x": weights(3, 3, 8, 8, seed=9)}
ROWS = "(float[n,4] x) => (float[n,4] y)"
SQUARE = {"w": weights(4, 4)}


def test_fp16_computes_in_half_and_keeps_its_interface(tmp_path: Path) -> None:
    result, path = convert_file(tmp_path, conv_bn(), "fp16")
    assert result.status == "passed"
    figures = result.figures
    assert figures["initializers"] == {"float16": 6}
    assert figures["kept_reasons"] == {}
    assert figures["bytes_after"] < figures["bytes_before"]
    json.dumps(figures, allow_nan=False)
    model = onnx.load(path)
    ports = (*model.graph.input, *model.graph.output)
    assert {port.type.tensor_type.elem_type for port in ports} == {FLOAT}
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
    text = """{ [product] h = MatMul(x, w) [scaled] a = Div(h, big)
        [epsilon] y = Add(a, small) }"""
    stored = {**SQUARE, "big": np.float32([1e6]), "small": np.float32([1e-12])}
    model = parse(ROWS + text, stored)
    result, path = convert_file(tmp_path, model, "fp16")
    assert [*result.figures["kept_reasons"]] == ["scaled", "epsilon"]
    assert result.figures["warnings"] == [
        "big has values up to 1e+06; its nodes stay in float32",
        "1 of 1 values of small would become zero; its nodes stay in float32",
    ]
    assert result.figures["initializers"] == {"float16": 1, "float32": 2}
    assert_close(model, onnx.load(path), {"x": weights(2, 4)}, rtol=2e-3)
    assert result.status == "passed", result.reason


def test_sizes_and_positions_stay_in_float32() -> None:
    text = """(float[n,4] x) => (float[a,b] y) {
        h = MatMul(x, w) shape = Shape(h)
        [to_float] float_shape = Cast <to = 1> (shape)
        [halve] half = Div(float_shape, two) [floor] floor = Floor(half)
        [to_int] size = Cast <to = 7> (floor) y = Slice(h, axis, size) }"""
    stored = {**SQUARE, "two": np.float32(2).reshape(()), "axis": np.array([0, 0], np.int64)}
    model = parse(text, stored)
    low, kept = converted_in_memory(model, "fp16")
    assert set(kept) == {"to_float", "halve", "floor", "to_int"}
    assert_close(model, low, {"x": weights(5001, 4)}, rtol=2e-3)  # half of it is no float16


def test_one_tensor_in_both_precisions_is_cast_once() -> None:
    text = """(float[n,4] x) => (float[n,4] y, float[n,4] h, float[n,4] c) {
        h = MatMul(x, w) [square] p = Pow(h, w0) [sum] c = CumSum(h, axis)
        r = Relu(h) y = Add(p, r) }"""
    model = parse(text, {**SQUARE, "w0": np.float32([2.0]), "axis": np.array(1)})
    low, kept = converted_in_memory(model, "fp16")
    assert set(kept) == {"square", "sum"}
    assert [n.op_type for n in low.graph.node].count("Cast") == 4  # x, h to float32, p, y
    assert_close(model, low, {"x": weights(3, 4)}, rtol=3e-3)


def test_an_initializer_used_in_both_precisions_is_stored_in_both() -> None:
    text = ROWS + "{ a = Mul(x, k) p = Pow(a, k) y = MatMul(p, w) }"
    model = parse(text, {"k": np.float32([2.0]), **SQUARE})
    low, _ = converted_in_memory(model, "fp16")
    types = {t.name: t.data_type for t in low.graph.initializer}
    assert types == {"k": FLOAT, "k_float16": TensorProto.FLOAT16, "w": TensorProto.FLOAT16}
    assert_close(model, low, {"x": weights(3, 4)}, rtol=3e-3)


def test_constants_and_resize_scales() -> None:
    text = """(float[n,3,4,4] x) => (float[n,6,8,8] y) {
        scales = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()
        one = Constant <value = float[1] {1.0}> ()
        [resize] big = Resize <mode = "nearest"> (x, , scales)
        sum = Add(big, one) shape = Shape(sum) [zeros] zeros = ConstantOfShape(shape)
        conv = Conv <pads = [1, 1, 1, 1]> (sum, w)
        z = Sub(sum, zeros) y = Concat <axis = 1> (conv, z) }"""
    model = parse(text, {"w": weights(3, 3, 3, 3)})
    model.graph.value_info.append(helper.make_tensor_value_info("one", FLOAT, [1]))
    low, kept = converted_in_memory(model, "fp16")
    assert kept == {"zeros": "an attribute sets the type of its result"}
    assert next(t for t in low.graph.initializer if t.name == "scales").data_type == FLOAT
    assert_close(model, low, {"x": weights(2, 3, 4, 4)}, rtol=2e-3)


def test_subgraphs_stay_in_float32_and_see_the_tensors_around_them() -> None:
    text = """(float[4,4] x, bool flag) => (float[4,4] y) {
        h = MatMul(x, w)
        [if] chosen = If(flag) <then_branch = t () => (float[4,4] a) { a = MatMul(h, w) },
            else_branch = e () => (float[4,4] b) { b = Add(h, w) }>
        y = Relu(chosen) }"""
    model = parse(text, SQUARE)
    low, kept = converted_in_memory(model, "fp16")
    assert kept == {"if": "it has subgraphs"}
    for flag in (True, False):
        assert_close(model, low, {"x": weights(4, 4), "flag": np.array(flag)}, rtol=3e-3)


FUNCTION = """<domain: "my", opset_import: ["" : 17]> Halve (a) => (b)
    { half = Constant <value_float = 0.5> () b = Mul(a, half) }"""


def test_local_functions_stay_in_float32(tmp_path: Path) -> None:
    text = "{ h = MatMul(x, w) [f] z = my.Halve(h) y = Relu(z) }"
    model = parse(f"{ROWS} {text} {FUNCTION}", SQUARE)
    low, kept = converted_in_memory(model, "fp16")
    assert kept["f"] == "ONNX does not define the operator"
    assert_close(model, low, {"x": weights(3, 4)}, rtol=3e-3)
    result, _ = convert_file(tmp_path, model, "bf16")  # MatMul has bfloat16 in opset 17
    assert result.figures["opset"] == 17
    assert "opset 17 is kept" in result.figures["warnings"][0]


def test_an_unconvertible_graph_is_an_error_with_the_reason(tmp_path: Path) -> None:
    text = "{ [conv] h = Conv(x, w) z = my.Halve(h) y = Relu(z) }"
    ports = "(float[n,4,1,1] x) => (float[n,4,1,1] y)"
    model = parse(f"{ports} {text} {FUNCTION}", {"w": weights(4, 4, 1, 1)})
    reason = "conv stays in float32, because Conv does not support bfloat16 in this opset"
    with pytest.raises(StageError, match=reason):
        convert_file(tmp_path, model, "bf16")
    integers = parse("(int64[2] x) => (int64[2] y) { y = Add(x, x) }")
    with pytest.raises(StageError, match="no expensive operator can compute in float16"):
        convert_file(tmp_path, integers, "fp16", {"opt": {"x": np.arange(2)}})


# --- what the converted graph computes -----------------------------------------------------------


def overflowing() -> onnx.ModelProto:
    """Return an identity with intermediate values beyond float16."""
    text = """{ [product] h = MatMul(x, w) [up] a = Mul(h, k) ["further up"] b = Mul(a, k)
        [down] c = Div(b, k) ["further down"] y = Div(c, k) }"""
    return parse(ROWS + text, {"w": np.eye(4, dtype=np.float32), "k": np.float32([1000])})


LARGE = {"opt": {"x": np.float32([[0.5, 0.25, -0.5, 0.125], [0, 0, 0, 0]])}}
OVERFLOW = "the fp16 graph overflows: b, of Mul (node further up), is not finite in fp16, and y"


def test_an_overflow_on_the_way_fails_and_names_the_node(tmp_path: Path) -> None:
    small = np.float32([[1e-3, 2e-3, 0, 1e-2]])
    result, path = convert_file(tmp_path, overflowing(), "fp16", {"min": {"x": small}, **LARGE})
    assert result.status == "failed"
    assert result.reason == (
        f"{OVERFLOW} differs in case opt of the fp16 graph: at [0, 0] ONNX Runtime has inf and the"
        " original model 0.5 (4 of 8 elements are NaN or infinite)"
    )
    assert result.hint == (
        "`buildsys debug --fp32-nodes m:ENGINE` finds the nodes that must stay in fp32, and"
        " precision: auto-fp16 keeps them there; bf16 has the range of float32"
    )
    figures = result.figures
    json.dumps(figures, allow_nan=False)
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


def test_bf16_has_the_range(tmp_path: Path) -> None:
    result, _ = convert_file(tmp_path, overflowing(), "bf16")
    assert result.status == "passed", result.reason
    assert result.figures["tolerance"] == {**TOLERANCE["bf16"], **AGREEMENT_LIMITS["bf16"]}
    assert 1e-3 < result.figures["cases"]["opt"]["y"]["relative"] < 1e-1


def test_an_overflow_that_ends_in_a_finite_number_or_begins_at_the_input_is_named(
    tmp_path: Path,
) -> None:
    model = overflowing()
    model.graph.node[-1].CopyFrom(helper.make_node("Reciprocal", ["c"], ["y"], name="last"))
    inner, _ = convert_file(tmp_path, model, "fp16", {"opt": {"x": np.full((1, 4), 0.5, "f4")}})
    assert (inner.status, inner.reason.startswith(OVERFLOW)) == ("failed", True)
    model = parse(ROWS + "{ [product] y = MatMul(x, w) }", SQUARE)
    first, _ = convert_file(tmp_path, model, "fp16", {"opt": {"x": np.full((1, 4), 1e5, "f4")}})
    where = "y, of MatMul (node product), is not finite in fp16, and y"
    assert first.reason.startswith(f"the fp16 graph overflows: {where}")


def test_infinities_that_belong_to_the_network_are_no_overflow(tmp_path: Path) -> None:
    text = "{ h = MatMul(x, w) masked = Add(h, mask) y = Softmax <axis = 1> (masked) }"
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    model = parse("(float[4,4] x) => (float[4,4] y)" + text, {**SQUARE, "mask": mask})
    result, _ = convert_file(tmp_path / "right", model, "fp16")
    assert result.status == "passed", result.reason
    wrong, _ = convert_file(
        tmp_path / "wrong", model, "fp16", y=tensor_of(np.full((4, 4), 0.25, np.float32))
    )
    assert wrong.status == "failed"
    assert wrong.reason.startswith("y differs in case opt of the fp16 graph: at [")
    assert "verify.fp16" in wrong.hint


def test_a_network_in_the_requested_precision_is_unchanged() -> None:
    for precision, elem_type in (("fp16", TensorProto.FLOAT16), ("bf16", TensorProto.BFLOAT16)):
        model = typed_network(elem_type)
        low = copy(model)
        convert_precision(low, precision)
        assert low.graph == model.graph


def test_a_network_in_another_16_bit_type_is_refused_with_a_remedy() -> None:
    with pytest.raises(StageError, match=r"no expensive operator can .* by precision: fp32"):
        convert_precision(typed_network(TensorProto.BFLOAT16), "fp16")


LOWEST = float(np.finfo(np.float32).min)
MASKS = {
    "filled": "is_kept = Greater(keep, zero) masked = Where(is_kept, scores, lowest)",
    "selected": """is_kept = Greater(keep, zero) bias = Where(is_kept, nothing, lowest)
        masked = Add(scores, bias)""",
    "scaled": """kept = Cast <to = 1> (keep) dropped = Sub(one, kept) bias = Mul(dropped, lowest)
        masked = Add(scores, bias)""",
}


def attention(kind: str, lowest: float, opset: int = 17) -> onnx.ModelProto:
    """Return an attention with the integer input ``keep``: 0 masks a token."""
    stored = {
        **SQUARE, "v": weights(4, 4, seed=1), "zero": np.array(0, np.int64),
        "lowest": np.float32(lowest), "one": np.float32(1), "nothing": np.float32(0),
    }  # fmt: skip
    text = f"""(float[3,4] x, int64[3,3] keep) => (float[3,4] y) {{
        q = MatMul(x, w) t = Transpose <perm = [1, 0]> (x) scores = MatMul(q, t)
        {MASKS[kind]}
        p = Softmax <axis = 1> (masked) values = MatMul(x, v) y = MatMul(p, values) }}"""
    return parse(text, stored, opset)


@pytest.mark.parametrize(
    ("kind", "precision", "lowest"),
    [
        *((kind, "fp16", LOWEST) for kind in MASKS),
        ("filled", "bf16", LOWEST),
        ("selected", "bf16", -1e9),
    ],
)
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
