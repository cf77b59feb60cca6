from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from sample_networks import Affine
from small_graphs import conv_bn, make_model
from stage_jobs import ROOT, manifest, stage_job

from buildsys.errors import StageError
from buildsys.models.user_code import load_callable
from buildsys.onnx_graphs.tensors import Case, load_case, load_cases, tensor_of
from buildsys.stages.common.golden_check import OutputRules, compare_case, wrong_outputs
from buildsys.stages.reference import further_cases
from buildsys.stages.reference import stage as reference
from buildsys.workers.job import StageResult

LIMITS = {"rtol": 1e-4, "cosine": 0.9999}
NETWORKS = "tests/integration/sample_networks.py"


def run(folder: Path, name: str, project: Path = ROOT, **sections: Any) -> StageResult:
    source = {"python": f"{NETWORKS}:{name}", **sections.pop("source", {})}
    return reference.run(
        stage_job("reference", manifest(source=source, **sections), folder, project)
    )


def case_of(folder: Path, case: str = "opt") -> Case:
    return load_case(folder / f"m/reference/{case}.npz")


def test_every_case_has_its_inputs_and_outputs(tmp_path: Path) -> None:
    figures = run(
        tmp_path,
        "Affine",
        outputs={"y": {"shape": ["batch", 3]}},
        validate={"drawn_sizes": 0, "other_values": False},
    ).figures
    assert {case: entry["dims"] for case, entry in figures["cases"].items()} == {
        "min": {"batch": 1}, "opt": {"batch": 3}, "max": {"batch": 8}, "odd": {"batch": 5},
    }  # fmt: skip
    for case, entry in figures["cases"].items():
        golden = case_of(tmp_path, case)
        torch.manual_seed(0)
        with torch.no_grad():
            expected = Affine()(torch.from_numpy(golden.inputs["x"].array)).numpy()
        assert np.allclose(golden.outputs["y"].array, expected, rtol=1e-5, atol=1e-6)
        assert entry["inputs"]["x"] == {"dtype": "float32", "shape": [entry["dims"]["batch"], 4]}
    assert figures["weights"] == f"initialized by {NETWORKS}:Affine (torch seed 0)"


@pytest.mark.parametrize(
    ("network", "dtype", "expected"),
    [
        ("Linear(4, 3)", "float32", "float32"),
        ("Linear(4, 3).half()", "float16", "float16"),
        ("Linear(4, 3).bfloat16()", "bfloat16", "bfloat16"),
        ("Sequential(Linear(4, 3), Scaled())", "float32", "float32"),
        ("Softmax(1)", "float16", "float16"),
    ],
)
def test_golden_files_name_the_float_type_of_most_weights(
    tmp_path: Path, network: str, dtype: str, expected: str
) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch.nn import *\n"
        "class Scaled(Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('scale', torch.ones(1).half())\n"
        "    def forward(self, x): return x * self.scale.float()\n"
        f"def make(): return {network}\n"
    )
    inputs = {"x": {"shape": ["batch", 4], "dtype": dtype}}
    run(tmp_path, "", tmp_path, source={"python": "net.py:make"}, inputs=inputs)
    assert case_of(tmp_path).float_type == expected


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("import nowhere_to_be_found", "pip install nowhere_to_be_found"),
        ("import nowhere.part", "pip install nowhere"),
        ("raise ModuleNotFoundError('', name='cv2')", "pip install opencv-python-headless"),
        ("import torch.nowhere", ""),
        ("from torch import nowhere", ""),
    ],
)  # fmt: skip
def test_a_missing_package_names_the_pip_command(tmp_path: Path, line: str, hint: str) -> None:
    (tmp_path / "net.py").write_text(f"import torch\n{line}\n")
    with pytest.raises(StageError, match=r"importing net\.py failed") as error:
        load_callable("net.py:make", tmp_path)
    assert error.value.hint == hint


def test_files_are_the_same_each_time(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        run(tmp_path / folder, "Affine")
    files = [(tmp_path / folder / "m/reference/opt.npz").read_bytes() for folder in ("a", "b")]
    assert files[0] == files[1]


def test_a_forward_that_writes_into_its_input_does_not_change_the_golden_input(
    tmp_path: Path,
) -> None:
    run(tmp_path, "InPlace")
    golden = case_of(tmp_path)
    assert np.array_equal(golden.outputs["output0"].array, 2 * golden.inputs["x"].array)


STRUCTURED = """\
import torch


class Structured(torch.nn.Module):
    def forward(self, images, state=None, *, heads, reduction="sum"):
        assert isinstance(images, list) and isinstance(state, tuple | None)
        assert isinstance(heads, dict)
        mean = reduction == "mean"
        stacked = torch.stack(images)
        x = stacked.mean(0) if mean else stacked.sum(0)
        return x * heads["scale"] + (0 if state is None else state[0] - state[1])

"""
HEADS = {"scale": 3.0}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ({"args": [["a", "b"]], "kwargs": {"heads": HEADS}}, lambda a, b: 3 * (a + b)),
        ({"args": [["a"], None], "kwargs": {"heads": {"scale": "b"}}}, lambda a, b: a * b),
        (
            {"args": [["a"], {"tuple": ["b", "a"]}], "kwargs": {"heads": HEADS}},
            lambda a, b: 2 * a + b,
        ),
        (
            {"args": [["a", "b"]], "kwargs": {"heads": HEADS, "reduction": {"text": "mean"}}},
            lambda a, b: 1.5 * (a + b),
        ),
    ],
)
def test_arguments_of_any_structure(tmp_path: Path, call: Any, expected: Any) -> None:
    (tmp_path / "net.py").write_text(STRUCTURED)
    inputs = {"a": {"shape": ["batch", 4]}, "b": {"shape": ["batch", 4]}}
    source = {"python": "net.py:Structured"}
    run(tmp_path, "", tmp_path, source=source, inputs=inputs, call=call, outputs={"y": {}})
    case = case_of(tmp_path)
    a, b = (case.inputs[name].array for name in "ab")
    assert np.allclose(case.outputs["y"].array, expected(a, b), atol=1e-6)


def test_keywords_go_to_their_parameters(tmp_path: Path) -> None:
    inputs = {
        "a": {"shape": ["batch"], "keyword": "a", "data": {"constant": 7.0}},
        "b": {"shape": ["batch"], "data": {"constant": 1.0}},
    }
    run(tmp_path, "KeywordOrder", inputs=inputs)
    assert case_of(tmp_path).outputs["output0"].array.tolist() == [5.0] * 3


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64", "float8e4m3fn", "uint64", "bool"])
def test_dtypes_come_through_unchanged(tmp_path: Path, dtype: str) -> None:
    run(tmp_path, "Identity", inputs={"x": {"shape": ["batch", 4], "dtype": dtype}})
    golden = case_of(tmp_path)
    assert golden.outputs["output0"].dtype == dtype
    assert np.array_equal(golden.outputs["output0"].array.reshape(3, 4), golden.inputs["x"].array)


def test_outputs_that_are_not_finite_are_kept_and_counted(tmp_path: Path) -> None:
    inputs = {"x": {"shape": ["batch", 50]}}
    figures = run(tmp_path, "Infinite", inputs=inputs).figures
    negative = int((case_of(tmp_path, "min").inputs["x"].array < 0).sum())
    values = f"of {case_of(tmp_path, 'min').inputs['x'].array.size} values"
    equal = "in case min: engines must have them at equal places"
    assert sorted(figures["warnings"]) == [
        f"output roots has {negative} {values} NaN {equal}",
        f"output rows has {negative} {values} infinite {equal}",
    ]
    assert {"seed-1", "extremes-1"} <= figures["cases"].keys()


@pytest.mark.parametrize(
    ("broken", "hint"),
    [(True, "the weights have NaN in scale: take others"), (False, "change the input data or the")],
)
def test_an_output_of_nan_alone_is_refused(tmp_path: Path, broken: bool, hint: str) -> None:
    source = {"python": f"{NETWORKS}:Undefined", "kwargs": {"broken": broken}}
    with pytest.raises(StageError, match="output output0 is NaN everywhere in every case") as error:
        run(tmp_path, "", source=source)
    assert error.value.hint.startswith(hint)


def test_indices_of_equal_scores_are_equal(tmp_path: Path) -> None:
    figures = run(tmp_path, "Ranked", inputs={"x": {"shape": ["batch", 50]}}).figures
    assert "seed-1" in figures["cases"]
    for name in ("min", "max", "seed-1", "large"):
        case = case_of(tmp_path, name)
        order = np.argsort(-case.inputs["x"].array.round(), axis=-1, kind="stable")[:, :3]
        actual = {"output0": tensor_of(order.astype(np.int64))}
        assert not wrong_outputs(compare_case(case, actual, LIMITS, OutputRules()))
        actual = {"output0": tensor_of(order.astype(np.int64) + 1)}
        assert wrong_outputs(compare_case(case, actual, LIMITS, OutputRules()))


def test_an_output_shape_that_holds_in_one_case_only(tmp_path: Path) -> None:
    with pytest.raises(
        StageError, match=r"output y has the shape \[3\], the manifest declares \[1\]"
    ):
        run(tmp_path, "Pair", outputs={"z": {}, "y": {"shape": [1]}})


# --- ready ONNX files ---


def given(project: Path, model: onnx.ModelProto, **inputs: Any) -> StageResult:
    onnx.save(model, project / "given.onnx")
    resolved = manifest(source={"onnx": "given.onnx"}, inputs=inputs)
    return reference.run(stage_job("reference", resolved, project, project))


def test_a_ready_file_answers_by_onnx_runtime(tmp_path: Path) -> None:
    figures = given(tmp_path, conv_bn(), x={"shape": ["batch", 3, 8, 8]}).figures
    assert figures["weights"] == "from given.onnx"
    assert np.allclose(
        case_of(tmp_path, "max").outputs["y"].array.sum(1), 1.0, atol=1e-5
    )  # a softmax


@pytest.mark.parametrize(
    ("dtype", "kind", "data"),
    [
        ("string", TensorProto.STRING, {"constant": "word"}),
        ("int64", TensorProto.INT64, None),
        ("float16", TensorProto.FLOAT16, None),
    ],
)
def test_dtypes_of_ready_files(tmp_path: Path, dtype: str, kind: int, data: Any) -> None:
    model = make_model(
        [helper.make_node("Identity", ["x"], ["y"])],
        {"x": (kind, ["batch"])},
        {"y": (kind, ["batch"])},
    )
    given(tmp_path, model, x={"shape": ["batch"], "dtype": dtype, "data": data})
    golden = case_of(tmp_path)
    assert golden.outputs["y"].dtype == dtype
    assert np.array_equal(golden.outputs["y"].array, golden.inputs["x"].array)


def test_a_file_that_quantizes_is_not_compared_at_nan(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["y"]),
    ]
    ports = [{name: (TensorProto.FLOAT, [2, 50])} for name in ("x", "y")]
    model = make_model(nodes, *ports, {"scale": np.array(0.05, np.float32)})
    cases = given(tmp_path, model, x={"shape": [2, 50]}).figures["cases"]
    assert "inf" in cases
    assert "nan" not in cases


def test_a_ready_file_that_onnx_runtime_refuses(tmp_path: Path) -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    model = make_model(
        [node],
        {"x": (TensorProto.FLOAT, ["batch"])},
        {"y": (TensorProto.FLOAT, ["a"])},
        {"shape": np.array([5])},
    )
    with pytest.raises(StageError, match=r"ONNX Runtime cannot run given.onnx: .*[Rr]eshape"):
        given(tmp_path, model, x={"shape": ["batch"]})


# --- further cases ---

LENGTH: dict[str, Any] = {"x": {"shape": [2, "length"]}}


@pytest.fixture
def networks(tmp_path: Path) -> Path:
    """A project with the sample networks alone: conditions on sizes come from all its modules."""
    file = tmp_path / "networks" / NETWORKS
    file.parent.mkdir(parents=True)
    file.write_bytes((ROOT / NETWORKS).read_bytes())
    return tmp_path / "networks"


WIDE: dict[str, Any] = {"x": {"shape": ["batch", 5000]}}
LONG = {"length": {"min": 2, "opt": 8, "max": 64}}


def lengths(figures: Any, kind: str) -> list[int]:
    found = figures["cases"].items()
    return [entry["dims"]["length"] for case, entry in found if case.startswith(kind)]


def test_drawn_sizes_are_new_values_of_the_range(tmp_path: Path) -> None:
    dims = {"length": {"min": 4, "opt": 8, "max": 64, "multiple_of": 4}}
    figures = run(tmp_path, "Branches", inputs=LENGTH, dims=dims).figures
    drawn = lengths(figures, "drawn")
    assert len(drawn) == len(set(drawn)) == 3
    assert all(4 <= size <= 64 and size % 4 == 0 for size in drawn)
    assert not set(drawn) & {figures["cases"][case]["dims"]["length"] for case in ("min", "opt")}
    assert case_of(tmp_path, "drawn-1").inputs["x"].shape == (2, drawn[0])
    again = run(tmp_path / "again", "Branches", inputs=LENGTH, dims=dims).figures
    assert lengths(again, "drawn") == drawn
    none = run(
        tmp_path / "none", "Branches", inputs=LENGTH, dims=dims, validate={"drawn_sizes": 0}
    ).figures
    assert lengths(none, "drawn") == []


@pytest.mark.parametrize(
    ("data", "low", "high"),
    [
        (None, -6, 6),
        ({"random": "normal", "mean": 10, "std": 2}, -2, 22),
        ({"random": "uniform", "low": -1, "high": 3}, -1, 3),
    ],
)
def test_extremes_reach_both_ends(tmp_path: Path, data: Any, low: float, high: float) -> None:
    run(tmp_path, "Branches", inputs={"x": {"shape": [2, 50], "data": data}}, dims={})
    values = [case_of(tmp_path, f"extremes-{n}").inputs["x"].array for n in (1, 2)]
    assert min(value.min() for value in values) <= low
    assert max(value.max() for value in values) >= high
    seeds = [case_of(tmp_path, f"seed-{n}").inputs["x"].array for n in (1, 2)]
    golden = case_of(tmp_path).inputs["x"].array
    assert not any(np.array_equal(value, golden) for value in (*values, *seeds))


OWN_OPERATOR = """
from pathlib import Path

import torch


@torch.library.custom_op("golden_test::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    with Path(__file__).with_name("sizes").open("a") as file:
        print(float(x.abs().max()), file=file)
    return x * 2


class Net(torch.nn.Module):
    def __init__(self, own):
        super().__init__()
        self.function = doubled if own else torch.tanh

    def forward(self, x):
        return self.function(x)
"""


@pytest.mark.parametrize("own", [True, False])
def test_operators_of_other_libraries_get_no_far_values(tmp_path: Path, own: bool) -> None:
    (tmp_path / "net.py").write_text(OWN_OPERATOR)
    source = {"python": "net.py:Net", "kwargs": {"own": own}}
    cases = run(tmp_path, "", tmp_path, source=source).figures["cases"]
    far = {"large", "huge", "inf"}
    assert cases.keys() & far == (set() if own else far)
    assert {"zeros", "ones", "small", "extremes-1"} <= cases.keys()
    if own:
        assert max(map(float, (tmp_path / "sizes").read_text().split())) < 50


@pytest.mark.parametrize(("rows", "count"), [(0, 32), (20, 20)])
def test_low_precision_gets_other_samples(tmp_path: Path, rows: int, count: int) -> None:
    values = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    np.savez(tmp_path / "data.npz", x=values)
    data = {"npz": str(tmp_path / "data.npz")} if rows else None
    engines = [{"name": "low", "backend": "onnxruntime", "precision": "fp16"}]
    run(tmp_path, "Affine", inputs={"x": {"shape": [1, 4], "data": data}}, dims={}, engines=engines)
    samples = load_cases(tmp_path / "m/reference/samples.npz")
    drawn = np.concatenate([case.inputs["x"].array for case in samples])
    assert len(np.unique(drawn, axis=0)) == len(samples) == count
    if rows:
        assert np.array_equal(drawn, values)


def test_a_network_that_never_ends_for_some_values_is_not_compared_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(further_cases, "_LEAST_LIMIT_S", 0.2)
    cases = run(tmp_path, "Halving", inputs={"x": {"shape": [2, 50]}}, dims={}).figures["cases"]
    assert "huge" in cases
    assert "inf" not in cases


def test_cases_that_cannot_be_compared_are_left_out_with_the_reason(tmp_path: Path) -> None:
    uniform = {"x": {"shape": [2, 50], "data": {"random": "uniform"}}}
    infinite = run(tmp_path / "a", "Logarithm", inputs=uniform, dims={}).figures
    assert set(infinite["cases"]) == {"opt", "seed-1", "seed-2", "ones", "small"}
    assert infinite["warnings"] == []
    dims = {"length": {"min": 2, "opt": 8, "max": 64, "odd": 16}}
    refused = run(tmp_path / "b", "Halved", inputs=LENGTH, dims=dims).figures
    texts = [doubt["text"] for doubt in refused["doubts"]]
    assert any("(length " in text and "forward of Halved failed" in text for text in texts)
    limited = run(tmp_path / "d", "Limited", inputs={"x": {"shape": [2, 50]}}, dims={}).figures
    assert [doubt["place"] for doubt in limited["doubts"]] == ["large", "huge"]
    assert {"zeros", "ones", "small"} < {*limited["cases"]}
    strict = {"uncompared": "fail"}
    result = run(tmp_path / "c", "Halved", inputs=LENGTH, dims=dims, validate=strict)
    assert result.status == "failed"
    assert "is not compared: forward of Halved failed" in result.reason


@pytest.mark.parametrize(
    ("name", "data", "dims", "compared", "left_out"),
    [
        ("Logarithm", {"random": "uniform"}, {}, {"drawn-1", "ones", "small"}, []),
        ("Halved", {"random": "uniform"},
         {"length": {"min": 5000, "opt": 5008, "max": 5064, "odd": 5004}},
         {"extremes-1", "extremes-2", "zeros", "ones", "small"}, ["drawn-1 (length 5001)"]),
    ],
)  # fmt: skip
def test_size_and_extremes_are_compared_apart_if_the_network_refuses_one(
    tmp_path: Path,
    networks: Path,
    name: str,
    data: Any,
    dims: Any,
    compared: set[str],
    left_out: list[str],
) -> None:
    shape = [2, "length"] if dims else ["batch", 5000]
    sections = {"inputs": {"x": {"shape": shape, "data": data}}, **({"dims": dims} if dims else {})}
    figures = run(tmp_path, name, networks, **sections).figures
    assert set(figures["cases"]) == {"min", "opt", "max", "odd", *compared}
    reasons = [f"case {case} is not compared: " for case in left_out]
    texts = [doubt["text"] for doubt in figures["doubts"]]
    assert [w[: len(r)] for w, r in zip(texts, reasons, strict=True)] == reasons


def test_tensors_that_a_file_lacks_are_a_doubt(tmp_path: Path) -> None:
    torch.save({"linear.weight": torch.ones(3, 4), "head": torch.ones(1)}, tmp_path / "w.pth")
    weights = {"file": (tmp_path / "w.pth").as_uri(), "strict": False}
    figures = run(tmp_path, "Affine", source={"weights": weights}).figures
    assert figures["weights"] == f"from {tmp_path}/w.pth, without 1 other tensors"
    assert figures["doubts"] == [
        {
            "kind": "weights",
            "text": "the file of weights lacks linear.bias: as the network was created",
            "place": "linear.bias",
        }
    ]
