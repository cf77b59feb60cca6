"""Names and shapes of inputs and outputs: as declared, and as computed."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from export_jobs import NETWORKS, dynamo, export_network
from sample_networks import Gated
from small_graphs import parse
from stage_jobs import manifest, stage_job

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensor_types import output_facts
from buildsys.onnx_graphs.tensors import load_case, tensor_of
from buildsys.stages.export import stage as export
from buildsys.stages.reference import stage as reference

EXPORTERS = pytest.mark.parametrize("exporter", [{}, dynamo()], ids=["torchscript", "dynamo"])


@EXPORTERS
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (["linear", "relu"], ["mul", "where"]),
        (["linear.weight", "linear.bias"], ["linear", "relu"]),
        (["onnx::Mul_9", "val_0"], ["linear.bias", "x"]),
    ],
)
def test_names_that_exporters_give_to_inner_tensors(
    tmp_path: Path, exporter: dict[str, Any], inputs: list[str], outputs: list[str]
) -> None:
    figures = export_network(
        tmp_path, "Gated", export=exporter, inputs={n: {"shape": ["batch", 4]} for n in inputs},
        outputs={name: {} for name in outputs},
    ).figures  # fmt: skip
    assert [port["name"] for port in figures["inputs"]] == inputs
    assert [port["name"] for port in figures["outputs"]] == outputs
    torch.manual_seed(0)
    network = Gated().eval()
    arrays = [np.full((3, 4), value, np.float32) for value in (0.5, -2)]
    with torch.no_grad():
        expected = network(*map(torch.from_numpy, arrays))
    graph = OrtGraph(tmp_path / "m/export/model.onnx")
    actual = graph.run({name: tensor_of(a) for name, a in zip(inputs, arrays, strict=True)})
    for name, tensor in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(actual[name].array, tensor.numpy(), rtol=1e-5)


def test_a_resize_to_computed_sizes(tmp_path: Path) -> None:
    spans = {"h": {"min": 4, "opt": 8, "max": 12}}
    inputs = {"x": {"shape": [2, 3, "h", "h"]}}
    export_network(tmp_path, "Shrunk", export=dynamo(), inputs=inputs, dims=spans)


def test_a_dynamic_size_that_the_exporter_writes_as_a_number(tmp_path: Path) -> None:
    spans = {"batch": {"min": 1, "opt": 2, "max": 4}, "time": {"min": 1, "opt": 6, "max": 12}}
    figures = export_network(
        tmp_path, "Recurrent", export=dynamo(), inputs={"x": {"shape": ["batch", "time", 4]}},
        dims=spans,
    ).figures  # fmt: skip
    (output,) = figures["outputs"]
    assert output["shape"][:2] == ["batch", "time"]
    graph = OrtGraph(tmp_path / "m/export/model.onnx")
    x = np.zeros((2, 7, 4), np.float32)
    assert graph.run({"x": tensor_of(x)})[output["name"]].shape == (2, 7, 5)


@pytest.mark.parametrize(
    ("name", "exporter"), [("captured", dynamo()), ("lazy", dynamo()), ("scripted", {})]
)
def test_modules_unlike_those_of_code(tmp_path: Path, name: str, exporter: dict[str, Any]) -> None:
    source = {"python": f"{NETWORKS}:{name}"}
    job = stage_job("reference", manifest(source=source), tmp_path)
    reference.run(job)
    export_network(tmp_path, name, export=exporter)
    golden = load_case(job.outputs["case.opt"])
    actual = OrtGraph(tmp_path / "m/export/model.onnx").run(golden.inputs)
    for output, tensor in golden.outputs.items():
        np.testing.assert_allclose(actual[output].array, tensor.array, atol=1e-6)


def export_file(folder: Path, model: onnx.ModelProto, **sections: Any) -> dict[str, Any]:
    onnx.save(model, folder / "file.onnx")
    resolved = manifest(source={"onnx": "file.onnx"}, **sections)
    figures: dict[str, Any] = export.run(
        stage_job("export", resolved, folder / "build", folder)
    ).figures
    return figures


@pytest.mark.parametrize(
    ("shape", "written", "settled"),
    [
        ("n,4", "n,9", ["n", 4]),
        ("3,4", "9,4", [3, 4]),
        ("n,4", "9,4", ["n", 4]),
        ("-1,4", "-1,4", ["batch", 4]),
        ("-1,4", "3,4", ["batch", 4]),
    ],
)
def test_shapes_in_a_file_are_not_believed(
    tmp_path: Path, shape: str, written: str, settled: list[Any]
) -> None:
    text = f"(float[{shape.replace('-1', '77')}] x) => (float[{written.replace('-1', '77')}] y)"
    model = parse(f"{text} {{ h = Relu (x) y = Neg (h) }}")
    wrong = onnx.helper.make_tensor_value_info("h", 1, [5, 6])
    model.graph.value_info.append(wrong)
    for port in (*model.graph.input, *model.graph.output):
        for dim in port.type.tensor_type.shape.dim:
            if dim.dim_value == 77:
                dim.dim_value = -1
    declared = {"x": {"shape": [3, 4] if shape == "3,4" else ["batch", 4]}}
    (output,) = export_file(tmp_path, model, inputs=declared)["outputs"]
    assert output["shape"] == settled
    for batch in (3,) if shape == "3,4" else (1, 5):
        x = tensor_of(np.ones((batch, 4), np.float32))
        y = OrtGraph(tmp_path / "build/m/export/model.onnx").run({"x": x})["y"]
        assert y.shape == (batch, 4)


def test_two_outputs_of_one_name(tmp_path: Path) -> None:
    model = parse("(float[n,4] x) => (float[n,4] y) { y = Relu (x) }")
    model.graph.output.append(model.graph.output[0])
    with pytest.raises(StageError, match="2 outputs are named y"):
        export_file(tmp_path, model)


@pytest.mark.parametrize(
    ("text", "settled", "empty"),
    [
        ("(float[0,4] x) => (float[0,4] y) { y = Relu (x) }", [0, 4], ["y"]),
        ("(float[0,4] x) => (float[7,0] y) { y = Reshape <allowzero=1> (x, s) }", [7, 0], ["y"]),
        ("(float[3,4] x) => (int64[2,0] y) { y = NonZero (x) }", [2, None], []),
    ],
)
def test_outputs_without_elements_at_any_size(
    tmp_path: Path, text: str, settled: list[Any], empty: list[str]
) -> None:
    model = parse(text, {"s": np.int64([7, 0])} if "s)" in text else {})
    dims = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    (output,) = export_file(tmp_path, model, inputs={"x": {"shape": dims}})["outputs"]
    assert output["shape"] == settled
    written = onnx.load(tmp_path / "build/m/export/model.onnx")
    assert output_facts(written, ["y", "z"]) == {"outputs": ["y"], "empty": empty}
