"""The float32 emulation of 16-bit graphs against exact 16-bit arithmetic."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, checker, helper
from small_graphs import make_model, parse, weights

from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensor_types import emulate
from buildsys.onnx_graphs.tensors import Tensor, tensor_of
from buildsys.stages.convert.typed import convert_precision

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
TYPES = {"fp16": ("float16", FLOAT16), "bf16": ("bfloat16", BFLOAT16)}
node = helper.make_node
Array = np.ndarray


def run(
    model: onnx.ModelProto, optimization: str = "disable", **inputs: Array | Tensor
) -> dict[str, Tensor]:
    feeds = {
        name: value if isinstance(value, Tensor) else tensor_of(value)
        for name, value in inputs.items()
    }
    return OrtGraph(model.SerializeToString(), session_options(optimization=optimization)).run(
        feeds
    )


def half(model: onnx.ModelProto, precision: str) -> onnx.ModelProto:
    convert_precision(model, precision)
    emulated = emulate(model, precision)
    checker.check_model(emulated, full_check=True)
    return emulated


def rounded(values: Array, precision: str) -> Array:
    with np.errstate(over="ignore"):
        return tensor_of(values, TYPES[precision][0]).values().astype(np.float32)


# numpy computes these in float16 itself and rounds each result once
ELEMENTWISE: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum,
    "Neg": lambda a, _: -a, "Abs": lambda a, _: np.abs(a),
    "Relu": lambda a, _: np.maximum(a, np.float16(0)),
    "Sqrt": lambda a, _: np.sqrt(np.abs(a)), "Reciprocal": lambda a, _: np.float16(1) / a,
}  # fmt: skip
UNARY = ("Neg", "Abs", "Relu", "Sqrt", "Reciprocal")


def chain(operators: list[str]) -> onnx.ModelProto:
    nodes, last = [], "x"
    for index, operator in enumerate(operators):
        if operator == "Sqrt":
            nodes.append(node("Abs", [last], [f"abs{index}"]))
            last = f"abs{index}"
        inputs = [last] if operator in UNARY else [last, "k"]
        last = "y" if index == len(operators) - 1 else f"t{index}"
        nodes.append(node(operator, inputs, [last]))
    return make_model(
        nodes, {"x": (FLOAT, ["n"]), "k": (FLOAT, ["n"])}, {"y": (FLOAT, ["n"])}, opset=22
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(sorted(ELEMENTWISE)), min_size=1, max_size=6),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_chains_of_operators_compute_like_float16(
    operators: list[str], seed: int, optimized: bool
) -> None:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 0x7C00, (2, 500), np.uint16) | (
        rng.integers(0, 2, (2, 500), np.uint16) << 15
    )
    x, k = bits.view(np.float16)  # every finite float16 is as likely: many overflows and subnormals
    expected = x
    with np.errstate(all="ignore"):
        for operator in operators:
            expected = ELEMENTWISE[operator](expected, k)
    model = half(chain(operators), "fp16")
    actual = run(
        model, "all" if optimized else "disable", x=x.astype(np.float32), k=k.astype(np.float32)
    )["y"].array
    assert np.array_equal(actual, expected.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("optimization", ["disable", "basic", "extended", "all"])
def test_an_overflow_inside_the_graph_reaches_the_output(optimization: str) -> None:
    text = "(float[n] x) => (float[n] y) { a = Mul(x, k) b = Mul(a, k) y = Div(b, k) }"
    model, x = parse(text, {"k": np.float32([1000])}), np.float32([1, 0.01])
    assert np.isfinite(run(model, optimization, x=x)["y"].array).all()
    actual = run(half(model, "fp16"), optimization, x=x)["y"].array
    assert actual.tolist() == [np.inf, np.float16(10)]  # the typed graph itself hides it


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("optimization", ["disable", "all"])
def test_every_operator_rounds(optimization: str, precision: str) -> None:
    k = np.float32(1.0078125)  # is a bfloat16
    text = "(float[1000] x) => (float[1000] y) { a = Mul(x, k) b = Add(a, x) y = Sub(b, k) }"
    model, x = parse(text, {"k": np.array([k])}, opset=22), weights(1000)
    start = rounded(x, precision)
    expected = rounded(rounded(rounded(start * k, precision) + start, precision) - k, precision)
    actual = run(half(model, precision), optimization, x=x)["y"].array
    assert np.array_equal(actual, expected)
    once = rounded(start * k + start - k, precision)
    assert not np.array_equal(actual, once)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_inputs_and_outputs_of_the_type_keep_it(precision: str) -> None:
    dtype, kind = TYPES[precision]
    nodes = [
        node("Add", ["x", "x"], ["a"]),
        node("Relu", ["a"], ["y"]),
        node("Cast", ["i"], ["c"], to=kind),
        node("Mul", ["c", "y"], ["z"]),
    ]
    outputs = {name: (kind, [3]) for name in ("a", "y", "c", "z")}
    model = make_model(nodes, {"x": (kind, [3]), "i": (TensorProto.INT64, [3])}, outputs, opset=22)
    emulated = emulate(model, precision)
    checker.check_model(emulated, full_check=True)
    found = run(emulated, x=tensor_of(np.array([1.0, -2.0, 0.5]), dtype), i=np.array([2, 3, 2049]))
    assert {tensor.dtype for tensor in found.values()} == {dtype}
    assert found["a"].values().tolist() == [2.0, -4.0, 1.0]
    assert found["y"].values().tolist() == [2.0, 0.0, 1.0]
    assert found["c"].values().tolist() == [2.0, 3.0, 2048.0]
    assert found["z"].values().tolist() == [4.0, 0.0, 2048.0]


def test_values_stored_in_attributes_are_converted() -> None:
    """The text has bits: 11878 is 0.1."""
    model = parse("""(float16[2] x) => (float[2] y) {
        k = Constant <value = float16[1] {11878}> () h = Mul(x, k) y = Cast <to = 1> (h) }""")
    x = np.float16([3, 1e4])
    assert run(emulate(model, "fp16"), x=x)["y"].array.tolist() == (x * np.float16(0.1)).tolist()


def test_a_graph_without_the_type_stays_as_it_is() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = Relu(x) }", {"w": weights(2)})
    assert emulate(model, "fp16") == model
    convert_precision(model, "fp16")
    assert emulate(model, "bf16") == model


def test_fresh_names_are_unused() -> None:
    ports = "(float16[1] x, float16[1] h_unrounded) => (float16[1] y)"
    emulated = emulate(parse(ports + "{ h = Add(x, x) y = Mul(h, h_unrounded) }"), "fp16")
    checker.check_model(emulated, full_check=True)
    outputs = run(emulated, x=np.float16([2]), h_unrounded=np.float16([3]))
    assert outputs["y"].array.tolist() == [12.0]


HIDDEN = {
    "inner": """(float[2] x, bool flag) => (float[2] y) { y = If(flag) <
        then_branch = then () => (float[2] n) { n = If(flag) <
            then_branch = inner () => (float[2] b) { h = Cast <to = 10> (x) b = Cast <to = 1> (h) },
            else_branch = other () => (float[2] c) { c = Neg(x) }> },
        else_branch = else () => (float[2] d) { d = Neg(x) }> }""",
    "Twice": """(float16[2] x) => (float16[2] y) { y = my.Twice(x) }
        <domain: "my", opset_import: ["" : 17]> Twice (a) => (b)
        { k = Constant <value = float16[1] {16384}> () b = Mul(a, k) }""",
}


@pytest.mark.parametrize("name", HIDDEN)
def test_types_in_subgraphs_and_functions_are_refused(name: str) -> None:
    model = parse(HIDDEN[name])
    with pytest.raises(StageError, match=f"the inner graph {name} computes in float16, which"):
        emulate(model, "fp16")
    assert emulate(model, "bf16") == model
