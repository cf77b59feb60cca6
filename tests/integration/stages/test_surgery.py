"""All forms of surgery on small graphs: graph, golden cases and errors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_graphs import conv_bn, make_model, weights
from surgery_jobs import Surgery, agree, hook

from buildsys.errors import CheckFailed
from buildsys.onnx_graphs.onnx_file import operator_counts, ports
from buildsys.onnx_graphs.output_policies import load_assembled
from buildsys.onnx_graphs.tensors import tensor_of

HOOK = "plugins/hooks/hook.py:change"


def removal(folder: Path, operator: str) -> dict[str, str]:
    """Return a step with a hook that removes the nodes of an operator."""
    text = f"""\
        def remove(model):
            graph = model.graph
            outputs = [value.name for value in graph.output]
            for node in [node for node in graph.node if node.op_type == {operator!r}]:
                graph.node.remove(node)
                old, new = node.output[0], node.input[0]
                if old in outputs:
                    old, new = new, old
                for other in graph.node:
                    other.input[:] = [new if name == old else name for name in other.input]
                    other.output[:] = [new if name == old else name for name in other.output]
            return model
        """
    hook(folder, text, "plugins/hooks/removal.py")
    return {"function": "plugins/hooks/removal.py:remove"}


def operators(surgery: Surgery) -> dict[str, int]:
    return operator_counts(surgery.graph)


def test_renamed_ends_have_renamed_golden_cases(tmp_path: Path) -> None:
    surgery = Surgery(tmp_path, conv_bn(), [{"rename": {"x": "image", "y": "scores"}}])
    result = surgery.run()
    assert result.status == "passed", result.reason
    assert [port["name"] for side in ports(surgery.graph) for port in side] == ["image", "scores"]
    golden, before = surgery.case("odd"), surgery.golden("odd")
    np.testing.assert_array_equal(golden.inputs["image"].array, before.inputs["x"].array)
    np.testing.assert_array_equal(golden.outputs["scores"].array, before.outputs["y"].array)
    agree(surgery, "max")


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (
            {"imag": "z"},
            "surgery step 1 (rename imag → z): the graph has no input or output imag; its input or"
            " outputs",
        ),
        (
            {"x": "y"},
            "x cannot be renamed to y: the graph has a tensor of this name; choose another name",
        ),
    ],
)
def test_an_invalid_rename(tmp_path: Path, names: dict[str, str], sentence: str) -> None:
    assert sentence in Surgery(tmp_path, conv_bn(), [{"rename": names}]).error()


@pytest.mark.parametrize(
    "steps",
    [
        [{"rename": {"x": "image", "y": "scores"}}, {"cast": {"image": "float64"}}],
        [{"cast": {"x": "float16"}}],
        [{"cut": {"outputs": ["conv"]}}, {"rename": {"conv": "features"}}],
    ],
)
def test_further_cases_follow_the_steps(tmp_path: Path, steps: list[dict[str, Any]]) -> None:
    surgery = Surgery(tmp_path, conv_bn(), steps)
    surgery.add_further_case("drawn-1", batch=3)
    assert surgery.run().status == "passed"
    agree(surgery, "drawn-1")
    assert not surgery.job.outputs["case.drawn-2"].exists()


def test_further_outputs_are_not_computed_by_a_wrong_graph(tmp_path: Path) -> None:
    surgery = Surgery(tmp_path, conv_bn(), [{"cut": {"outputs": ["conv"]}}])
    surgery.add_further_case("drawn-1", batch=3, y=tensor_of(np.ones((3, 5), np.float32)))
    assert surgery.run().status == "passed"
    assert not surgery.job.outputs["case.drawn-1"].exists()


def test_assembled_outputs_follow_the_steps(tmp_path: Path) -> None:
    steps = [{"rename": {"y": "boxes"}}, {"rename": {"boxes": "rows"}}]
    surgery = Surgery(tmp_path, conv_bn(), steps)
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text('{"outputs": ["y"]}')
    job = surgery.job
    surgery.job = replace(
        job, inputs={**job.inputs, "assembled": before}, outputs={**job.outputs, "assembled": after}
    )
    assert surgery.run().status == "passed"
    assert load_assembled(after) == ["rows"]


def test_a_part_cut_out_has_the_tensors_there_as_golden_cases(tmp_path: Path) -> None:
    cut = {"inputs": {"relu": {"shape": ["batch", 4, 8, 8]}}, "outputs": ["logits", "flat"]}
    surgery = Surgery(tmp_path, conv_bn(), [{"cut": cut}])
    result = surgery.run()
    assert result.status == "passed", result.reason
    inputs, outputs = ports(surgery.graph)
    assert [port["shape"] for port in (*inputs, *outputs)] == [
        ["batch", 4, 8, 8],
        ["batch", 5],
        ["batch", 4],
    ]
    assert operators(surgery) == {"Flatten": 1, "Gemm": 1, "GlobalAveragePool": 1}
    assert [tensor.name for tensor in surgery.graph.graph.initializer] == ["fc"]
    assert surgery.case("max").inputs["relu"].shape == (4, 4, 8, 8)
    agree(surgery, "max")


def test_tensors_of_a_graph_that_is_wrong_are_not_taken_for_golden_ones(tmp_path: Path) -> None:
    surgery = Surgery(tmp_path, conv_bn(), [{"cut": {"outputs": ["logits"]}}])
    wrong = conv_bn()
    fc = next(tensor for tensor in wrong.graph.initializer if tensor.name == "fc")
    fc.CopyFrom(onnx.numpy_helper.from_array(weights(5, 4, seed=4) * np.float32(1.5), "fc"))
    onnx.save(wrong, surgery.job.inputs["model"])
    error = surgery.error()
    assert (
        "the graph before this step cannot compute new golden outputs: its output y differs in"
        " case " in error
    )
    assert "see the limits in validate" in error


@pytest.mark.parametrize(
    ("cut", "sentence"),
    [
        ({"outputs": ["logit"]},
         "surgery step 1 (cut outputs logit): the graph has no tensor logit; did you mean log"),
        ({"outputs": ["x"]}, "no node of the cut part computes x"),
        ({"inputs": {"logits": {"shape": ["batch", 5]}}, "outputs": ["relu"]},
         "the outputs do not depend on logits"),
        ({"inputs": {"relu": {"shape": ["batch", 4, 9, 9]}}},
         "relu is float32 [1, 4, 8, 8] in case min, the step declares ['batch', 4, 9, 9]"),
        ({"inputs": {"relu": {"shape": ["batch", 4, 8, 8], "dtype": "int8"}}},
         "relu is float32 [1, 4, 8, 8] in case min, the step declares int8; correct the step"),
    ],
)  # fmt: skip
def test_an_invalid_cut(tmp_path: Path, cut: dict[str, Any], sentence: str) -> None:
    assert sentence in Surgery(tmp_path, conv_bn(), [{"cut": cut}]).error()


def two_inputs() -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Add", ["a", "z"], ["y"])]
    value = (TensorProto.FLOAT, ["batch", 3, 8, 8])
    return make_model(nodes, {"x": value, "z": value}, {"y": value})


def test_a_cut_names_every_input_that_it_needs(tmp_path: Path) -> None:
    inputs = {name: {"shape": ["batch", 3, 8, 8]} for name in ("x", "z")}
    cut = {"inputs": {"a": {"shape": ["batch", 3, 8, 8]}}}
    error = Surgery(tmp_path / "a", two_inputs(), [{"cut": cut}], inputs=inputs).error()
    assert "the cut part also needs the input z; correct cut.inputs" in error
    cut["inputs"]["z"] = {}  # type: ignore[assignment]  # an input as it is
    surgery = Surgery(tmp_path / "b", two_inputs(), [{"cut": cut}], inputs=inputs)
    assert surgery.run().status == "passed"
    agree(surgery, "max")


def test_changed_numbers_are_reported_with_position_and_values_and_kept(tmp_path: Path) -> None:
    surgery = Surgery(tmp_path, conv_bn(), [removal(tmp_path, "Relu")])
    result = surgery.run()
    assert result.status == "failed"
    assert " the graph after it has 0." in result.reason
    assert " and the graph before it 0." in result.reason
    assert result.hint == "if this is intended, set changes: numbers and a reference"
    assert result.figures["steps"][0]["failures"][0]["index"]
    kept = surgery.job.outputs["result"].parent / "failed" / "step1-min.npz"
    with np.load(kept) as tensors:
        assert {"in.x", "expected.y", "actual.y"} <= set(tensors.files)


def test_an_input_of_another_type_that_holds_the_values(tmp_path: Path) -> None:
    value = (TensorProto.INT64, ["batch", 3])
    model = make_model([helper.make_node("Abs", ["x"], ["y"])], {"x": value}, {"y": value})
    surgery = Surgery(
        tmp_path,
        model,
        [{"cast": {"x": "int32"}}],
        inputs={"x": {"shape": ["batch", 3], "dtype": "int64"}},
    )
    result = surgery.run()
    assert result.figures["warnings"] == []
    assert ports(surgery.graph)[0][0]["dtype"] == "int32"
    assert operators(surgery) == {"Abs": 1, "Cast": 1}
    assert surgery.case("opt").inputs["x"].dtype == "int32"
    np.testing.assert_array_equal(
        surgery.case("opt").outputs["y"].array, surgery.golden("opt").outputs["y"].array
    )


def test_an_input_of_a_type_that_does_not_hold_the_values(tmp_path: Path) -> None:
    surgery = Surgery(tmp_path, conv_bn(), [{"cast": {"x": "uint8"}}])
    result = surgery.run()
    assert result.status == "passed", result.reason
    [warning] = result.figures["warnings"]
    assert warning.startswith(
        "the golden inputs of x are not exact in the new type: they are rounded"
    )
    assert surgery.case("max").inputs["x"].dtype == "uint8"
    agree(surgery, "max")


def test_steps_follow_each_other_and_each_sees_the_names_before_it(tmp_path: Path) -> None:
    hook(
        tmp_path,
        "def change(model):\n    assert model.graph.input[0].name == 'image'\n    return model\n",
    )
    steps = [
        {"cut": {"outputs": ["logits"]}},
        {"rename": {"x": "image", "logits": "scores"}},
        {"function": HOOK},
        {"cast": {"image": "float16"}},
    ]
    surgery = Surgery(tmp_path, conv_bn(), steps)
    result = surgery.run()
    assert result.status == "passed", result.reason
    assert [port["name"] for side in ports(surgery.graph) for port in side] == ["image", "scores"]
    agree(surgery, "opt")
    assert [step["step"].split()[0] for step in result.figures["steps"]] == [
        "cut", "rename", "function", "cast",
    ]  # fmt: skip


def test_a_step_that_adds_a_rare_dropout_fails(tmp_path: Path) -> None:
    hook(
        tmp_path,
        "import numpy as np, onnx\nfrom onnx import helper, numpy_helper\n"
        "def change(model):\n"
        "    for name, value in (('p', np.float32(1e-6)), ('on', np.bool_(True))):\n"
        "        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))\n"
        "    last = model.graph.node[-1]\n"
        "    last.output[0] = 'inner'\n"
        "    model.graph.node.append(helper.make_node('Dropout', ['inner', 'p', 'on'], ['y']))\n"
        "    return model\n",
    )
    with pytest.raises(CheckFailed, match="in training mode: Dropout"):
        Surgery(tmp_path, conv_bn(), [{"function": HOOK}]).run()


def test_large_weights_stay_external(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "buildsys.onnx_graphs.onnx_file.save_model.__kwdefaults__",
        {"inline_limit": 0, "weights_of": None},
    )
    monkeypatch.setattr("buildsys.onnx_graphs.onnx_file._EXTERNAL_FROM", 64)
    surgery = Surgery(tmp_path, conv_bn(), [removal(tmp_path, "Identity"), {"rename": {"x": "z"}}])
    assert surgery.run().status == "passed"
    assert surgery.job.outputs["model"].with_name("model.onnx.data").stat().st_size > 0
    agree(surgery, "opt")
    assert [
        path.name for path in surgery.job.outputs["model"].parent.iterdir() if path.is_dir()
    ] == []
