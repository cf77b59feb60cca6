import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_graphs import conv_bn, one_node, parse, simplify_job, typed_network, weights

from buildsys.errors import CheckFailed, StageError
from buildsys.onnx_graphs.onnx_file import (
    file_bytes,
    interface,
    interface_changes,
    load_model,
    save_model,
)
from buildsys.onnx_graphs.tensors import save_case, tensor_of
from buildsys.stages.simplify import stage as simplify

FLOAT = TensorProto.FLOAT
PORTS = "(float[batch,3,8,8] x) => (float[batch,3,8,8] y)"


@pytest.mark.parametrize("tool", ["onnxsim", "onnxslim"])
def test_bfloat16_graphs_are_compared_by_emulation(tmp_path: Path, tool: str) -> None:
    inputs = {"x": {"shape": ["batch", 8], "dtype": "float32"}}
    job = simplify_job(
        tmp_path, typed_network(TensorProto.BFLOAT16), simplify={"tool": tool}, inputs=inputs
    )
    result = simplify.run(job)
    assert result.status == "passed", result.reason
    assert all(case["y"]["passed"] for case in result.figures["equal"].values())


def test_onnxsim_folds_batch_norm_and_the_result_computes_the_same(tmp_path: Path) -> None:
    job = simplify_job(tmp_path, conv_bn())
    result = simplify.run(job)
    assert result.status == "passed", result.reason
    figures = result.figures
    assert figures["before"]["nodes"] == 8
    assert figures["removed"]["BatchNormalization"] == 1
    assert figures["removed"]["Identity"] == 1
    assert figures["after"]["operators"]["Conv"] == 1
    assert set(figures["equal"]) == set(job.options["cases"])
    assert (
        0 < figures["equal"]["odd"]["y"]["relative"] <= 1e-5
    )  # rounding differs, so they were really computed
    json.dumps(figures, allow_nan=False)
    model = onnx.load(job.outputs["model"])
    assert not [entry.key for entry in model.metadata_props if "onnxsim" in entry.key]
    written = {path.name for path in job.outputs["model"].parent.iterdir()}
    assert written == {"model.onnx", "assembled.json"}


def test_wrong_shapes_of_inner_tensors_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def annotate(model: onnx.ModelProto) -> None:
        wrong = helper.make_tensor_value_info("pool", TensorProto.FLOAT, ["batch", 4, 9, 9])
        del model.graph.value_info[:]
        model.graph.value_info.append(wrong)

    _sabotaged(monkeypatch, annotate)
    job = simplify_job(tmp_path, conv_bn())
    assert simplify.run(job).status == "passed"
    assert not onnx.load(job.outputs["model"]).graph.value_info


def test_onnxslim_missing_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxslim", None)
    with pytest.raises(
        StageError, match=r"onnxslim is not installed; pip install 'buildsys\[slim\]'"
    ):
        simplify.run(simplify_job(tmp_path, conv_bn(), simplify={"tool": "onnxslim"}))


def test_none_passes_the_file_through(tmp_path: Path) -> None:
    job = simplify_job(tmp_path, conv_bn(), simplify={"tool": "none"})
    result = simplify.run(job)
    assert result.status == "passed"
    assert job.outputs["model"].read_bytes() == job.inputs["model"].read_bytes()
    assert result.figures["removed"] == {}


@pytest.mark.parametrize("tool", ["onnxsim", "onnxslim"])
def test_without_fusion_batch_norm_stays(tmp_path: Path, tool: str) -> None:
    result = simplify.run(simplify_job(tmp_path, conv_bn(), simplify={"tool": tool, "fuse": False}))
    assert result.status == "passed", result.reason
    assert result.figures["after"]["operators"]["BatchNormalization"] == 1


def test_passes_of_the_tool_are_skipped_and_added(tmp_path: Path) -> None:
    for tool, fusion in {"onnxsim": "fuse_bn_*", "onnxslim": "FusionConvBN"}.items():
        spec: dict[str, object] = {"tool": tool, "skip_passes": [fusion]}
        result = simplify.run(simplify_job(tmp_path / tool, conv_bn(), simplify=spec))
        assert result.status == "passed", result.reason
        assert result.figures["after"]["operators"]["BatchNormalization"] == 1
    product = parse("""(float[2,3] a, float[3,4] b) => (float[2,4] y) {
        y = Einsum <equation = "ij,jk->ik"> (a, b) }""")
    shapes = {"a": [2, 3], "b": [3, 4]}
    inputs = {name: {"shape": shape, "dtype": "float32"} for name, shape in shapes.items()}
    spec = {"extra_passes": ["replace_einsum_with_matmul"]}
    result = simplify.run(
        simplify_job(tmp_path / "e", product, inputs=inputs, cases={"opt": {}}, simplify=spec)
    )
    assert result.figures["after"]["operators"] == {"MatMul": 1}


@pytest.mark.parametrize(
    ("tool", "field", "name", "message"),
    [
        ("onnxsim", "skip_passes", "fuse_rom", "no pass of onnxsim; did you mean fuse_rope"),
        ("onnxsim", "extra_passes", "einsum", "no pass of onnxsim; "),
        ("onnxslim", "skip_passes", "FusionBN", "no fusion of onnxslim; did you mean FusionConvBN"),
    ],
)
def test_an_unknown_pass_has_the_nearest_name(
    tmp_path: Path, tool: str, field: str, name: str, message: str
) -> None:
    with pytest.raises(StageError) as caught:
        simplify.run(simplify_job(tmp_path, conv_bn(), simplify={"tool": tool, field: [name]}))
    assert f"simplify.{field}: {name} matches {message}" in str(caught.value)


def test_the_size_threshold_stops_constants_from_blowing_up(tmp_path: Path) -> None:
    sizes = [64, 64, 8, 8]
    text = """(float[64,64,8,8] x) => (float[64,64,8,8] y) {
        zeros = ConstantOfShape <value = float[1] {2.0}> (size) y = Add(x, zeros) }"""
    job = simplify_job(
        tmp_path,
        parse(text, {"size": np.array(sizes, np.int64)}),
        inputs={"x": {"shape": sizes, "dtype": "float32"}},
        cases={"opt": {}},
        simplify={"tensor_size_threshold": 1000},
    )
    result = simplify.run(job)
    assert result.status == "passed", result.reason
    assert "ConstantOfShape" in result.figures["after"]["operators"]


def test_an_invalid_graph_is_one_sentence(tmp_path: Path) -> None:
    job = simplify_job(tmp_path, one_node("NoSuchOperator"))
    with pytest.raises(
        StageError,
        match=r"the exported graph is not valid ONNX: No Op registered for NoSuchOperator",
    ) as caught:
        simplify.run(job)
    assert "\n" not in str(caught.value)


def _sabotaged(monkeypatch: pytest.MonkeyPatch, change: object) -> None:
    def tool(source: Path, target: Path, spec: object, initializers_are_inputs: bool) -> None:
        model = load_model(source)
        change(model)  # type: ignore[operator]
        onnx.save(model, target)

    monkeypatch.setitem(simplify._TOOLS, "onnxsim", tool)  # type: ignore[arg-type]


def test_a_changed_weight_fails_with_place_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(model: onnx.ModelProto) -> None:
        fc = next(tensor for tensor in model.graph.initializer if tensor.name == "fc")
        fc.CopyFrom(numpy_helper.from_array(weights(5, 4, seed=4) * np.float32(1.001), "fc"))

    _sabotaged(monkeypatch, change)
    result = simplify.run(simplify_job(tmp_path, conv_bn()))
    assert result.status == "failed"
    assert "simplification changed y in case min: at [0, " in result.reason
    assert "the simplified graph has" in result.reason
    assert result.figures["equal"]["min"]["y"]["passed"] is False
    assert result.changes[0] == "simplify: {tool: none}"


def test_a_result_that_cannot_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = np.arange(8)
    model = parse(f"{PORTS} {{ y = Gather <axis = 3> (x, columns) }}", {"columns": columns})

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(columns + 1, "columns"))

    _sabotaged(monkeypatch, change)
    with pytest.raises(CheckFailed, match=r"simplification broke the graph: .* Gather") as caught:
        simplify.run(simplify_job(tmp_path, model))
    assert caught.value.changes == ("simplify: {tool: none}",)


def test_a_graph_broken_by_fusing_is_simplified_without(tmp_path: Path) -> None:
    """onnxsim drops the empty inputs of Concat, even if the axis is not the empty one."""
    names = ("rows", "columns", "channels")
    places = {name: np.zeros((0, 8, 1), np.int64) for name in names}
    text = """{ places = Concat <axis = -1> (rows, columns, channels)
        z = ScatterND(x, places, updates) y = Neg(z) }"""
    model = parse(PORTS + text, {**places, "updates": np.zeros((0, 8, 8), np.float32)})
    result = simplify.run(simplify_job(tmp_path, model))
    assert result.status == "passed", result.reason
    (warning,) = result.figures["warnings"]
    assert warning.startswith("simplification broke the graph: ONNX Runtime cannot run the graph:")
    assert warning.endswith("; simplified without fusing instead")
    assert "Concat" not in result.figures["after"]["operators"]


@pytest.mark.parametrize("fuse", [True, False])
def test_a_graph_rounded_by_fusing_is_simplified_without(tmp_path: Path, fuse: bool) -> None:
    """A scale that cancels most digits of the weights: batch norm may not be folded into them."""
    names = ("scale", "shift", "mean", "var")
    model = parse(
        """(float[batch,3,8,8] x) => (float[batch,4,8,8] y) {
        z = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        y = BatchNormalization (z, scale, shift, mean, var) }""",
        {
            "w": weights(4, 3, 3, 3) * np.float32(1e-3),
            "b": np.full(4, 1e4, np.float32),
            **{name: np.ones(4, np.float32) for name in names},
            "shift": np.zeros(4, np.float32),
            "mean": np.full(4, 1e4 + 0.7, np.float32),
        },
    )
    result = simplify.run(simplify_job(tmp_path, model, simplify={"fuse": fuse}))
    assert result.status == "passed", result.reason
    assert result.figures["after"]["operators"]["BatchNormalization"] == 1
    warnings = result.figures["warnings"]
    assert len(warnings) == fuse
    assert all("simplification changed y in case min: " in text for text in warnings)
    assert all(text.endswith("; simplified without fusing instead") for text in warnings)


def test_an_invalid_result_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _sabotaged(monkeypatch, lambda model: model.graph.node.reverse())
    with pytest.raises(CheckFailed, match="the graph from onnxsim is not valid ONNX") as caught:
        simplify.run(simplify_job(tmp_path, conv_bn()))
    assert caught.value.changes == ("simplify: {tool: none}",)


def _set_batch(value: onnx.ValueInfoProto, size: int | str) -> None:
    dim = value.type.tensor_type.shape.dim[0]
    dim.Clear()
    if isinstance(size, int):
        dim.dim_value = size
    else:
        dim.dim_param = size


def _freeze(model: onnx.ModelProto) -> None:
    _set_batch(model.graph.input[0], 2)
    _set_batch(model.graph.output[0], 2)


def test_a_frozen_batch_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _sabotaged(monkeypatch, _freeze)
    with pytest.raises(
        CheckFailed,
        match=r"changed the interface .* input x was \['batch', 3, 8, 8\] and became \[2, 3",
    ):
        simplify.run(simplify_job(tmp_path, conv_bn()))


def _rename_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = model.graph.node[-1].output[0] = "z"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_rename_output, "outputs y became z"),
        (lambda m: m.opset_import[0].__setattr__("version", 18), "opset"),
        (
            lambda m: m.graph.input[0].type.tensor_type.__setattr__("elem_type", 10),
            "input x was float32 and became float16",
        ),
        (lambda m: m.graph.output[0].type.tensor_type.shape.dim.add(), "output y was"),
        (lambda m: _set_batch(m.graph.output[0], 7), "output y was"),
        (lambda m: _set_batch(m.graph.input[0], 7), "input x was"),
    ],
)
def test_every_change_of_the_interface_is_seen(change: object, words: str) -> None:
    before, after = conv_bn(), conv_bn()
    assert list(interface_changes(interface(before), interface(after))) == []
    change(after)  # type: ignore[operator]
    assert words in next(interface_changes(interface(before), interface(after)))


def test_initializers_that_are_inputs_stay_so(tmp_path: Path) -> None:
    model = conv_bn()
    model.graph.input.append(helper.make_tensor_value_info("fc", FLOAT, [5, 4]))
    job = simplify_job(tmp_path, model)
    assert simplify.run(job).status == "passed"
    assert [value.name for value in onnx.load(job.outputs["model"]).graph.input] == ["x", "fc"]
    with pytest.raises(StageError, match="onnxslim cannot keep initializers"):
        simplify.run(simplify_job(tmp_path, model, simplify={"tool": "onnxslim"}))


# --- facts and writing of ONNX files --------------------------------------------------------------


def one_weight(size: int) -> onnx.ModelProto:
    return parse(
        f"(float[{size}] x) => (float[{size}] y) {{ y = Add(x, w) }}", {"w": weights(size)}
    )


def test_large_weights_are_external(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    written = set()
    for _ in range(2):  # onnx would append to the file of the first time
        save_model(one_weight(2000), path, inline_limit=1000)
        written.add((path.read_bytes(), (tmp_path / "model.onnx.data").read_bytes()))
    assert len(written) == 1
    assert path.stat().st_size < 1000
    assert file_bytes(path) > 8000
    assert np.array_equal(
        numpy_helper.to_array(load_model(path).graph.initializer[0]), weights(2000)
    )
    save_model(one_weight(2000), path)
    assert list(tmp_path.iterdir()) == [path]


def mean_of_lengths() -> onnx.ModelProto:
    """A sum over the first ``n`` values, divided by n: NaN for n = 0, which the data never has."""
    text = """(float[batch,3] x, int64[batch,1] n) => (float[batch,3] y) {
        count = Cast <to = 1> (n) sum = Mul(x, count)
        same = Identity(sum) y = Div(same, count) }"""
    return parse(text)


LENGTHS = {
    "x": {"shape": ["batch", 3], "dtype": "float32"},
    "n": {"shape": ["batch", 1], "dtype": "int64"},
}


def test_nan_at_equal_places_is_not_called_random(tmp_path: Path) -> None:
    result = simplify.run(simplify_job(tmp_path, mean_of_lengths(), inputs=LENGTHS))
    assert result.status == "passed", result.reason  # with own inputs, of which some are 0


def test_both_graphs_are_compared_on_the_golden_inputs(tmp_path: Path) -> None:
    job = simplify_job(tmp_path, mean_of_lengths(), inputs=LENGTHS)
    for case, dims in job.options["cases"].items():
        inputs = {
            "x": tensor_of(np.full((dims["batch"], 3), 2, np.float32)),
            "n": tensor_of(np.full((dims["batch"], 1), 7, np.int64)),
        }
        save_case(tmp_path / f"{case}.npz", inputs, {})
    files = {f"case.{case}": tmp_path / f"{case}.npz" for case in job.options["cases"]}
    result = simplify.run(dataclasses.replace(job, inputs={**job.inputs, **files}))
    assert result.status == "passed", result.reason
    equal = result.figures["equal"]
    assert [case["y"]["passed"] for case in equal.values()] == [True] * len(files)
