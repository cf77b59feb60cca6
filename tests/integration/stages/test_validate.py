import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_graphs import CASES, conv_bn, data_role, make_model, parse, weights, write

from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import load_case, load_tensors, save_case, tensor_of
from buildsys.stages.common.graph_runs import random_inputs
from buildsys.stages.validate import stage as validate
from buildsys.workers.job import Job

TOLERANCE = {"rtol": 1e-4, "cosine": 0.9999, "atol": None, "top1": None}
INPUTS = {"x": {"shape": ["batch", 3, 8, 8], "dtype": "float32"}}
PORTS = "(float[batch,3,8,8] x) => (float[batch,3,8,8] y)"


def golden(folder: Path, model: onnx.ModelProto) -> dict[str, Path]:
    """Write golden outputs of a graph."""
    graph = OrtGraph(model.SerializeToString())
    paths = {}
    for case, dims in CASES.items():
        inputs = random_inputs(INPUTS, case, dims)
        paths[f"case.{case}"] = folder / f"{case}.npz"
        save_case(folder / f"{case}.npz", inputs, graph.run(inputs))
    return paths


def validate_job(
    folder: Path, exported: onnx.ModelProto, simplified: onnx.ModelProto, cases: dict[str, Path]
) -> Job:
    (folder / "validate").mkdir(exist_ok=True)
    graphs = {
        "exported": write(folder / "export", exported),
        "simplified": write(folder / "simplify", simplified),
    }
    roles = {
        f"{name}.{role}": path
        for name, source in graphs.items()
        for role, path in data_role(source).items()
    }
    return Job(
        target="validate:m", stage="validate", model="m", variant="",
        options={"tolerance": TOLERANCE, "cases": CASES, "inputs": INPUTS, "outputs": ["y"]},
        inputs={**{f"{name}.model": path for name, path in graphs.items()}, **roles, **cases},
        outputs={"result": folder / "validate" / "result.json"},
        project=folder,
    )  # fmt: skip


def scale_fc(model: onnx.ModelProto) -> None:
    fc = next(tensor for tensor in model.graph.initializer if tensor.name == "fc")
    fc.CopyFrom(numpy_helper.from_array(weights(5, 4, seed=4) * np.float32(1.01), "fc"))


def test_equal_outputs_pass(tmp_path: Path) -> None:
    model = conv_bn()
    job = validate_job(tmp_path, model, model, golden(tmp_path, model))
    result = validate.run(replace(job, options={**job.options, "constant": {"x": 1}}))
    assert result.status == "passed", result.reason
    (warning,) = result.figures["warnings"]
    assert warning.startswith("input x is 1 in every case, so its effect is not compared; to")
    assert set(result.figures["graphs"]) == {"exported", "simplified"}
    figures = result.figures["graphs"]["simplified"]["odd"]["y"]
    assert figures["passed"] is True
    assert set(figures) == {"max_abs", "relative", "cosine", "top1", "passed"}
    assert result.figures["failures"] == []
    assert not (tmp_path / "validate" / "failed").exists()


def test_a_policy_replaces_the_limits_of_its_output(tmp_path: Path) -> None:
    model, other = conv_bn(), conv_bn()
    scale_fc(other)
    job = validate_job(tmp_path, model, other, golden(tmp_path, model))
    policy = {"policy": "elementwise", "rtol": 0.05, "atol": None, "allow_zero": False}
    result = validate.run(replace(job, options={**job.options, "compare": {"y": policy}}))
    assert result.status == "passed", result.reason
    assert result.figures["graphs"]["simplified"]["odd"]["y"]["policy"] == "elementwise"


def test_an_output_that_is_always_zero_is_not_passed(tmp_path: Path) -> None:
    model = parse(f"{PORTS} {{ y = Mul(x, zero) }}", {"zero": np.array(0, np.float32)})
    job = validate_job(tmp_path, model, model, golden(tmp_path, model))
    result = validate.run(job)
    assert result.status == "failed"
    problem = "output 'y': it is zero everywhere in every case, so no case compares anything"
    assert result.reason == problem
    accepted = {"y": {"compare": {"policy": "auto", "allow_zero": True}}}
    assert result.changes[-1] == f"outputs: {json.dumps(accepted)}"
    assert result.figures["graphs"]["exported"]["odd"]["y"]["passed"] is None
    allowed = {"y": {"policy": "auto", "allow_zero": True}}
    result = validate.run(replace(job, options={**job.options, "compare": allowed}))
    assert result.status == "passed", result.reason
    warn = validate.run(replace(job, options={**job.options, "uncompared": "warn"}))
    assert warn.status == "passed", warn.reason
    doubt = {"kind": "output", "text": problem, "place": "y"}
    assert (result.figures["doubts"], warn.figures["doubts"]) == ([], [doubt])


def cancelling(scale: float) -> onnx.ModelProto:
    """Return x * scale - x * (scale - 0.1): rounding errors grow by 10 * scale."""
    factors = {"high": np.full((3, 8, 8), scale), "low": np.full((3, 8, 8), scale - 0.1)}
    values = {name: array.astype(np.float32) for name, array in factors.items()}
    text = "{ more = Mul(x, high) less = Mul(x, low) y = Sub(more, less) }"
    return parse(f"{PORTS} {text}", values)


@pytest.mark.parametrize(
    ("scale", "error", "rtol", "status"),
    [
        (100.3, 3e-4, None, "passed"),
        (100.3, 3e-4, 1e-4, "failed"),  # as the manifest says
        (100.3, 3e-3, None, "failed"),  # beyond the noise
        (3000.3, 3e-3, None, "failed"),  # within the noise, but ten times the limit
        (0.3, 3e-4, None, "failed"),  # stable
    ],
)
def test_errors_within_the_rounding_noise_of_a_network_pass(
    tmp_path: Path, scale: float, error: float, rtol: float | None, status: str
) -> None:
    model = cancelling(scale)
    cases = golden(tmp_path, model)
    for path in cases.values():
        case = load_case(path)
        y = case.outputs["y"].array
        save_case(path, case.inputs, {"y": tensor_of(y + np.float32(error) * np.abs(y).max())})
    job = validate_job(tmp_path, model, model, cases)
    limits = {**TOLERANCE, "rtol": rtol}
    result = validate.run(replace(job, options={**job.options, "tolerance": limits}))
    assert result.status == status, result.reason
    figures = result.figures["graphs"]["exported"]["odd"]["y"]
    assert figures.get("note", "").startswith("its relative error 0.0003 is beyond 0.0001") is (
        status == "passed"
    )


@pytest.mark.parametrize(
    ("wrong", "uncompared", "status"),
    [
        (["odd"], None, "passed"),
        (["odd"], "fail", "failed"),
        (list(CASES), None, "failed"),
        (list(CASES), "warn", "passed"),
    ],
)
def test_cases_that_the_last_bits_decide_are_counted(
    tmp_path: Path, wrong: list[str], uncompared: str | None, status: str
) -> None:
    model = cancelling(1e5 + 0.3)
    cases = golden(tmp_path, model)
    for name in wrong:
        case = load_case(cases[f"case.{name}"])
        y = case.outputs["y"].array.copy()
        y[..., 0] += np.float32(1 / 64)
        save_case(cases[f"case.{name}"], case.inputs, {"y": tensor_of(y)})
    job = validate_job(tmp_path, model, model, cases)
    options = {"tolerance": {**TOLERANCE, "rtol": None}, "uncompared": uncompared}
    result = validate.run(replace(job, options={**job.options, **options}))
    assert result.status == status, result.reason
    assert [doubt["place"] for doubt in result.figures["doubts"]] == wrong
    assert status == "passed" or "depend on the last bits" in result.reason
    assert (result.hint.startswith("choose inputs.NAME.data")) is (status == "failed")


def test_a_failure_that_is_not_excused_has_no_note_about_the_last_bits(tmp_path: Path) -> None:
    model = cancelling(1e5 + 0.3)
    cases = golden(tmp_path, model)
    case = load_case(cases["case.odd"])
    outputs = {"y": tensor_of(case.outputs["y"].array[:, :, :, :-1])}
    save_case(cases["case.odd"], case.inputs, outputs)
    job = validate_job(tmp_path, model, model, cases)
    limits = {**TOLERANCE, "rtol": None}
    result = validate.run(replace(job, options={**job.options, "tolerance": limits}))
    assert result.status == "failed"
    assert "has shape" in result.reason
    assert "last bits" not in result.reason
    # the simplified graph has the same shape
    assert [failure["graph"] for failure in result.figures["failures"]] == ["exported"]
    assert result.hint.startswith("compute the size in forward")


def test_a_wrong_graph_fails_with_place_and_values_and_keeps_the_tensors(tmp_path: Path) -> None:
    model, wrong = conv_bn(), conv_bn()
    scale_fc(wrong)
    result = validate.run(validate_job(tmp_path, model, wrong, golden(tmp_path, model)))
    assert result.status == "failed"
    assert result.reason.startswith("y differs in case min of the simplified graph: at [0, ")
    assert "ONNX Runtime has 0." in result.reason
    assert "and the original model 0." in result.reason
    assert "allowed 0.0001" in result.reason
    assert result.reason.endswith("(and 2 more)")
    failure = result.figures["failures"][0]
    assert (failure["graph"], failure["case"], failure["output"]) == ("simplified", "min", "y")
    assert failure["actual"] != failure["expected"]
    json.dumps(result.figures, allow_nan=False)
    assert result.figures["graphs"]["exported"]["min"]["y"]["passed"] is True
    kept = load_tensors(tmp_path / "validate" / "failed" / "simplified-min.npz")
    assert set(kept) == {"in.x", "expected.y", "actual.y"}
    index = tuple(failure["index"])
    assert kept["actual.y"].array[index] == np.float32(failure["actual"])
    assert not (tmp_path / "validate" / "failed" / "exported-min.npz").exists()
    assert result.hint == ""
    result = validate.run(validate_job(tmp_path, wrong, wrong, golden(tmp_path, model)))
    assert "if this is rounding, raise validate.rtol above 4.5e-03" in result.hint


def test_outputs_too_many_or_too_few_are_failures(tmp_path: Path) -> None:
    model, two = conv_bn(), conv_bn()
    two.graph.output.append(
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 5])
    )
    more = validate.run(validate_job(tmp_path, model, two, golden(tmp_path, model)))
    where = "logits differs in case min of the simplified graph: is"
    assert f"{where} an extra output of the graph" in more.reason
    less = validate.run(validate_job(tmp_path, two, model, golden(tmp_path, two)))
    assert f"{where} missing in the graph" in less.reason
    failed = load_tensors(tmp_path / "validate/failed/simplified-min.npz")
    assert set(failed) == {"in.x", "expected.logits"}


# --- running a graph with tensors of any type -----------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8e4m3fn", "float8e5m2fnuz", "float16", "uint64", "bool"]
)
def test_tensors_of_any_type_go_through_onnx_runtime(dtype: str) -> None:
    kind = getattr(TensorProto, dtype.upper())
    node = helper.make_node("Identity", ["x"], ["y"])
    model = make_model([node], {"x": (kind, ["n", 2])}, {"y": (kind, ["n", 2])}, opset=21)
    graph = OrtGraph(model.SerializeToString())
    for rows in (3, 0):
        x = tensor_of(np.arange(rows * 2).reshape(rows, 2) % 2, dtype)
        y = graph.run({"x": x})["y"]
        assert (y.dtype, y.shape) == (dtype, (rows, 2))
        assert y.array.tobytes() == x.array.tobytes()


def test_a_node_that_fails_at_run_time_is_named() -> None:
    text = "(float[n] x) => (float[a,b] y) { [fold] y = Reshape(x, shape) }"
    model = parse(text, {"shape": np.array([3, 3], np.int64)})
    graph = OrtGraph(model.SerializeToString(), session_options(severity=4))
    with pytest.raises(
        StageError, match=r"Reshape \(node fold\) failed: The input tensor cannot be reshaped"
    ):
        graph.run({"x": tensor_of(np.zeros(2, np.float32))})


def test_a_missing_kernel_names_node_and_remedy() -> None:
    text = "(double[1,1,4] x) => (double[1,1,4] y) { [c] y = Conv(x, w) }"
    model = parse(text, {"w": np.ones((1, 1, 1), np.float64)})
    message = r"no kernel for Conv\(11\) with these types \(node c\); most kernels are for float32"
    with pytest.raises(StageError, match=message):
        OrtGraph(model.SerializeToString(), session_options(severity=4))
