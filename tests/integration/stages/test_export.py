import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from export_jobs import IMAGE, NETWORKS, dynamo, line_of
from export_jobs import export_network as run

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.manifest.exports import OTHER_EXPORTS
from buildsys.onnx_graphs.tensors import tensor_of
from buildsys.stages.export import exporters


def error_of(folder: Path, name: str, **sections: Any) -> StageError:
    with pytest.raises(StageError) as error:
        run(folder, name, **sections)
    return error.value


def failure(folder: Path, name: str, **sections: Any) -> str:
    return str(error_of(folder, name, **sections))


def model_of(folder: Path) -> onnx.ModelProto:
    return onnx.load(folder / "m/export/model.onnx")


# --- what is written ---


def test_figures_describe_the_file(tmp_path: Path) -> None:
    figures = run(tmp_path, "Affine", outputs={"y": {}}).figures
    file = tmp_path / "m/export/model.onnx"
    assert figures["nodes"] == 1
    assert figures["operators"] == {"Gemm": 1}
    assert figures["parameters"] == 15
    assert figures["bytes"] == file.stat().st_size
    assert figures["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 4]}]
    assert figures["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["batch", 3]}]
    assert figures["producer"].startswith("pytorch ")
    assert figures["weights"] == f"initialized by {NETWORKS}:Affine (torch seed 0)"
    assert json.loads(json.dumps(figures)) == figures


@pytest.mark.parametrize("export", [{}, dynamo()], ids=["torchscript", "dynamo"])
def test_arguments_in_a_list(tmp_path: Path, export: dict[str, Any]) -> None:
    call = {"args": [["a", "b"], None], "kwargs": {"scale": 2.0}}
    inputs = {"a": {"shape": ["batch", 4]}, "b": {"shape": ["batch", 4]}}
    run(tmp_path, "ListOfTensors", inputs=inputs, call=call, export=export)
    a, b = np.ones((5, 4), np.float32), np.full((5, 4), 3, np.float32)
    graph = OrtGraph(tmp_path / "m/export/model.onnx")
    (found,) = graph.run({"a": tensor_of(a), "b": tensor_of(b)}).values()
    assert np.array_equal(found.array, 2 * (a + b))


def test_nested_outputs_keywords_and_order(tmp_path: Path) -> None:
    outputs = {"a": {"key": "heads.0"}, "b": {"key": "sum"}, "c": {"key": "heads.1.0"}}
    figures = run(tmp_path, "Nested", outputs=outputs).figures
    assert [(port["name"], port["shape"]) for port in figures["outputs"]] == [
        ("a", ["batch", 4]), ("b", ["batch"]), ("c", ["batch", 4]),
    ]  # fmt: skip
    keywords = {"a": {"shape": ["batch", 4], "keyword": "a"}, "b": {"shape": ["batch", 4]}}
    for exporter in ({}, dynamo()):
        run(tmp_path, "KeywordOrder", inputs=keywords, export=exporter)
        subtraction = next(node for node in model_of(tmp_path).graph.node if node.op_type == "Sub")
        assert subtraction.input[0] == "a"


@pytest.mark.parametrize("options", [{}, dynamo()], ids=["torchscript", "dynamo"])
def test_a_wrapped_network_stays_in_eval_mode(tmp_path: Path, options: dict[str, Any]) -> None:
    keyword = {"x": {"shape": ["batch", 4], "keyword": "x"}}
    figures = run(tmp_path, "Dropped", inputs=keyword, export=options).figures
    assert figures["operators"] == {"Identity": 1}
    assert figures["warnings"] == []


@pytest.mark.parametrize("options", [{}, dynamo()], ids=["torchscript", "dynamo"])
@pytest.mark.parametrize(
    ("kind", "operator"),
    [("dropout", "Dropout"), ("noise", "RandomUniformLike"), ("norm", "BatchNormalization")],
)
def test_random_operators_are_refused_with_their_line(
    tmp_path: Path, kind: str, operator: str, options: dict[str, Any]
) -> None:
    source = {"kwargs": {"kind": kind}}
    message = failure(tmp_path, "RarelyRandom", source=source, export=options)
    line = line_of("torch.rand_like(x) * 1" if kind == "noise" else "self.layers[self.kind]")
    assert f"in training mode: {operator} ({line})" in message
    assert "list them in export.random only if no output depends on them" in message
    allowed = {**options, "random": [operator]}
    assert run(tmp_path, "RarelyRandom", source=source, export=allowed).status == "passed"


def test_layers_without_running_statistics_are_not_in_training_mode(tmp_path: Path) -> None:
    source = {"kwargs": {"kind": "norm", "is_tracking": False}}
    inputs = {"x": {"shape": [4, 4]}}
    assert run(tmp_path, "RarelyRandom", source=source, inputs=inputs).status == "passed"


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int8", "bool", "float8e4m3fn"])
def test_dtypes(tmp_path: Path, dtype: str) -> None:
    inputs = {"x": {"shape": ["batch", 4], "dtype": dtype}}
    figures = run(tmp_path, "Identity", inputs=inputs, export={"opset": 19}).figures
    assert (figures["inputs"][0]["dtype"], figures["outputs"][0]["dtype"]) == (dtype, dtype)


@pytest.mark.parametrize(
    ("dtype", "options", "message"),
    [
        ("uint16", {}, "ScalarType UInt16 is an unexpected tensor scalar type"),
        ("complex64", dynamo(), "x is complex; no exporter can write complex inputs or outputs"),
        ("int4", {}, "a PyTorch network cannot take or return int4 tensors"),
    ],
)
def test_dtypes_that_cannot_be_exported(
    tmp_path: Path, dtype: str, options: Any, message: str
) -> None:
    assert message in failure(
        tmp_path, "Identity", inputs={"x": {"shape": [2, 4], "dtype": dtype}}, export=options
    )


def test_the_trace_takes_the_data_of_the_manifest(tmp_path: Path) -> None:
    inputs = {
        "ids": {"shape": ["ids"], "dtype": "int64"},
        "offsets": {
            "shape": ["bags"],
            "dtype": "int64",
            "data": {"python": f"{NETWORKS}:bag_offsets"},
        },
    }
    dims = {"ids": {"min": 8, "opt": 16, "max": 32}, "bags": {"min": 2, "opt": 4, "max": 4}}
    assert run(tmp_path, "Bags", inputs=inputs, dims=dims).figures["nodes"]
    inputs = {"x": {"shape": [2, 4], "data": {"random": "uniform"}}}
    random = {"random": ["Multinomial"]}
    found = run(tmp_path, "Sampled", inputs=inputs, dims={}, export=random).figures
    assert "Multinomial" in found["operators"]


LENGTH = {"x": {"shape": ["batch", "length"]}}
LONG = {"batch": {"min": 1, "opt": 2, "max": 4}, "length": {"min": 1, "opt": 8, "max": 64}}


def test_warnings_of_the_tracer_name_the_line(tmp_path: Path) -> None:
    source = {"kwargs": {"special": 9}}
    figures = run(tmp_path, "Branches", source=source, inputs=LENGTH, dims=LONG).figures
    place = line_of("# the special size")
    text = "Converting a tensor to a Python boolean might cause the trace to be incorrect"
    assert figures["doubts"] == [{"kind": "branch", "text": f"{text} ({place})", "place": place}]
    assert figures["warnings"] == []


@pytest.mark.parametrize(
    ("kwargs", "condition", "line"),
    [
        ({"special": 57}, "length != 57", "# the special size"),
        ({"period": 23}, "length % 23", "# every period"),
        ({"power": 16}, "length & (-1) + length", "# a power of 2"),
    ],
)
def test_a_size_outside_the_guards_of_dynamo_fails(
    tmp_path: Path, kwargs: dict[str, int], condition: str, line: str
) -> None:
    message = failure(
        tmp_path, "Branches", source={"kwargs": kwargs}, inputs=LENGTH, dims=LONG, export=dynamo()
    )
    size = 64 if "power" in kwargs else next(iter(kwargs.values()))
    assert message.startswith("the exported program is right only for")
    assert condition in message
    assert f"({line_of(line)})" in message
    assert f"length {size}" in message
    assert "narrow dims.length, set multiple_of" in message


def test_guards_without_effect_on_numbers_pass(tmp_path: Path) -> None:
    inputs, dims = {"x": {"shape": [3, "length"]}}, {"length": {"min": 2, "opt": 8, "max": 64}}
    found = run(tmp_path, "Padded", inputs=inputs, dims=dims, export=dynamo())
    assert found.status == "passed"


def test_dynamo_takes_ranges_of_one_size(tmp_path: Path) -> None:
    dims = {"batch": {"min": 1, "opt": 1, "max": 1}}
    figures = run(tmp_path, "Affine", dims=dims, export=dynamo()).figures
    assert figures["inputs"][0]["shape"] == ["batch", 4]


# --- options ---


def test_modules_as_functions_keep_the_output_names(tmp_path: Path) -> None:
    options = {"export_modules_as_functions": ("torch.nn.ReLU",)}
    figures = run(tmp_path, "Small", inputs=IMAGE, outputs={"y": {}}, export=options).figures
    assert figures["operators"]["torch.nn.modules.activation::ReLU"] == 2
    assert figures["outputs"][0]["name"] == "y"
    wrong = {"export_modules_as_functions": ("torch.nn.RELU",)}
    assert "torch.nn.RELU is not a subclass of torch.nn.Module" in failure(
        tmp_path, "Small", inputs=IMAGE, export=wrong
    )


def test_verify_and_report_of_dynamo(tmp_path: Path) -> None:
    run(tmp_path, "Affine", export=dynamo(verify=True, report=True))
    files = sorted(path.name for path in (tmp_path / "m/export").iterdir())
    assert "model.onnx" in files
    reports = [name for name in files if name.endswith(".md")]
    assert len(reports) == 1
    assert not any(character.isdigit() for character in reports[0]), "no time stamp in the name"


def test_external_data_is_one_file_next_to_the_model(tmp_path: Path) -> None:
    figures = run(tmp_path, "make_large", export={"external_data": True}).figures
    folder = tmp_path / "m/export"
    assert sorted(path.name for path in folder.iterdir()) == [
        "model.onnx",
        "model.onnx.data",
        "origins.json",
    ]
    assert figures["bytes"] == sum(path.stat().st_size for path in folder.glob("model.onnx*"))
    stored = [tensor for tensor in model_of(tmp_path).graph.initializer if tensor.dims == [6400, 4]]
    torch.manual_seed(0)
    expected = torch.nn.Linear(4, 6400).weight.detach().numpy()
    assert (onnx.numpy_helper.to_array(stored[0]) == expected).all()


def test_a_model_too_large_for_one_file_is_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporters, "ONE_MESSAGE_LIMIT", 1000)
    run(tmp_path, "make_large", export={"external_data": True})
    assert sorted(path.name for path in (tmp_path / "m/export").iterdir()) == [
        "model.onnx",
        "model.onnx.data",
        "origins.json",
    ]


# --- what is refused ---


def test_an_export_of_dynamo_is_lowered_to_the_requested_opset(tmp_path: Path) -> None:
    outputs = []
    for opset in (18, 17):
        assert run(tmp_path, "LayerNorm", export=dynamo(opset)).figures["opset"] == opset
        x = tensor_of(np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32))
        outputs += OrtGraph(tmp_path / "m/export/model.onnx").run({"x": x}).values()
    assert np.array_equal(outputs[0].array, outputs[1].array)
    error = error_of(tmp_path, "LayerNorm", export=dynamo(16))
    assert "lowered to opset 16: the operator of LayerNormalization" in error.problem
    assert error.changes[:2] == (
        "export: {exporter: dynamo, opset: 18}",
        "export: {exporter: torchscript, opset: 16}",
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Asinh", {},
         "the torchscript exporter cannot translate the operator aten::asinh to opset 17 "
         f"({line_of('torch.asinh(x)')})\naten::asinh(Tensor self) -> Tensor\n"
         "1. registration: write a symbolic function for opset 17 and later and register it"
         " (not tried)\n"
         '     symbolics: [{op: "aten::asinh", function: "plugins/symbolics/asinh.py:asinh",'
         ' opset: 17}]'),
        ("Products", {}, "cannot translate"),
        ("Untranslatable", dynamo(),
         "the dynamo exporter cannot translate the operator aten::_linalg_eigh to opset 18 "
         f'({line_of("eigvalsh")})\naten::_linalg_eigh(Tensor A, str UPLO="L", bool'
         f' compute_v=True) -> (Tensor '
         "eigenvalues, Tensor eigenvectors)\n1. registration: write an onnxscript function and"
         " register it (not tried)\n"
         '     translations: [{op: "aten::_linalg_eigh", function:'
         ' "plugins/symbolics/linalg_eigh.py:linalg_eigh"}]'),
        ("Affine", {"opset": 99},
         "the torchscript exporter failed at opset 99: RuntimeError: Unsupported"),
        ("Bits", {}, "bitwise AND for non-boolean input values, on a node of"
         f" {line_of('x.int() & 3')}"),
    ],
)  # fmt: skip
def test_untranslated_operators(tmp_path: Path, name: str, options: Any, message: str) -> None:
    assert message in failure(tmp_path, name, export=options)


def test_an_operator_outside_the_opset_names_the_first_opset_with_it(tmp_path: Path) -> None:
    inputs = {"x": {"shape": ["batch", 3, 5, 5]}, "offset": {"shape": ["batch", 18, 3, 3]}}
    error = error_of(tmp_path, "Deformed", inputs=inputs, export=dynamo(18))
    assert (error.problem, error.changes) == (
        "opset 18 does not have the operator DeformConv used in the file of dynamo",
        ("export: {exporter: dynamo, opset: 19}", *OTHER_EXPORTS),
    )


def test_an_autograd_function_without_a_symbolic_gets_remedies(tmp_path: Path) -> None:
    message = failure(tmp_path, "Doubled", export={"autograd_inlining": False})
    assert message.startswith(
        "the torchscript exporter cannot translate the autograd function Double ("
    )
    assert re.search(
        r"Double \(\S+\.py:\d+\), called at \S+\.py:\d+\n1. symbolic: give Double", message
    )
    assert "     def symbolic(g, x):\n" in message
    fallthrough = {"operator_export_type": "onnx_fallthrough"}  # would leave prim::PythonOp
    error = error_of(tmp_path, "Doubled", export=fallthrough)
    assert "autograd function Double" in error.problem
    assert error.changes[0] == "export: {operator_export_type: onnx}"
    assert run(tmp_path, "Doubled", export={"autograd_inlining": True}).status == "passed"
    assert run(tmp_path, "Doubled", export=dynamo(18)).status == "passed"


def test_a_branch_on_values_does_not_recommend_tracing(tmp_path: Path) -> None:
    error = error_of(tmp_path, "ValueBranch", export=dynamo())
    assert "use torch.where or torch.cond" in error.hint
    assert error.changes == ()


def test_other_exports_are_proposed(tmp_path: Path) -> None:
    assert error_of(tmp_path, "ForTorchscript", export=dynamo()).changes == OTHER_EXPORTS


def test_an_input_that_forward_does_not_use(tmp_path: Path) -> None:
    inputs = {"x": {"shape": ["batch", 4]}, "y": {"shape": ["batch", 4]}}
    message = failure(tmp_path, "IgnoresOne", inputs=inputs)
    assert "the file lacks y, which forward does not use; remove it" in message
    del inputs["y"]
    assert run(tmp_path, "IgnoresOne", inputs=inputs, call={"args": ["x", None]}).status == "passed"


def test_an_input_whose_value_tracing_makes_constant(tmp_path: Path) -> None:
    inputs = {"x": {"shape": ["batch", 4]}, "factor": {"shape": []}}
    assert (
        "the file lacks factor: tracing made its value constant: Converting a tensor to a Python"
        f" float might cause the trace to be incorrect ({line_of('float(factor)')})"
    ) in failure(tmp_path, "Scaled", inputs=inputs)
    assert run(tmp_path, "Scaled", inputs=inputs, export=dynamo(18)).status == "passed"


def test_a_size_that_forward_fixes_is_named(tmp_path: Path) -> None:
    message = failure(tmp_path, "Unrolled", export=dynamo())
    assert "for dimension inputs['x'].shape[0]" in message
    assert "forward fixes that size" in message


def test_all_operators_without_a_translation_are_named(tmp_path: Path) -> None:
    message = failure(tmp_path, "Spectrum")
    assert "cannot translate 2 operators to opset 17: aten::fft_rfft (" in message
    assert "\naten::fft_rfft(" in message
    assert run(tmp_path, "Spectrum", export=dynamo(18)).status == "passed"


@pytest.mark.parametrize(
    ("name", "outputs", "message"),
    [
        ("Fails", {},
         "forward of Fails failed on x float32 [2, 4]: RuntimeError: shape '[5, 5]' is invalid for"
         " input "
         f"of size 8 ({NETWORKS}:"),
        ("Pair", {"y": {}},
         "returned output0 [2, 4], output1 [2]; the manifest declares y;"),
        ("Nested", {"total": {}}, "the manifest declares total; correct the key of total"),
        ("Pair", {"y": {}, "x": {}},
         "output x has the name of an input; give it another name in outputs"),
        ("Pair", {"y": {"shape": ["batch", 5]}, "z": {}}, "output y has the shape [2, 4]"),
        ("Pair", {"y": {"dtype": "float16"}, "z": {}},
         "output y is float32, the manifest declares float16"),
        ("WithNumber", {}, "forward returned int as output 1; only tensors can be outputs"),
        ("not_a_module", {}, f"{NETWORKS}:not_a_module returned str, not a torch.nn.Module"),
        ("raises", {}, f"{NETWORKS}:raises failed: ValueError: no such backbone ({NETWORKS}:"),
        ("Afine", {}, f"{NETWORKS} has no Afine; did you mean Affine"),
    ],
)  # fmt: skip
def test_networks_that_are_not_as_declared(
    tmp_path: Path, name: str, outputs: Any, message: str
) -> None:
    assert message in failure(tmp_path, name, outputs=outputs)
