"""Networks with their own quantizers, from their file to verified engines."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat
from quantized_networks import SYMMETRIC, quantized
from small_graphs import parse, weights
from stage_jobs import job_files, manifest
from torch import nn

from buildsys.errors import StageError
from buildsys.models.torch_model import main_float_type
from buildsys.onnx_graphs.quantizers import check_scales
from buildsys.onnx_graphs.tensors import load_case
from buildsys.project.plan import plan_model
from buildsys.report.engines import executed_precision
from buildsys.stages.calibrate import stage as calibrate
from buildsys.stages.convert import stage as convert
from buildsys.stages.engine import stage as engine
from buildsys.stages.export import stage as export
from buildsys.stages.reference import proposal
from buildsys.stages.reference import stage as reference
from buildsys.stages.simplify import stage as simplify
from buildsys.stages.validate import stage as validate
from buildsys.stages.verify import stage as verify
from buildsys.workers.job import Job, StageResult

RUNS = {
    "calibrate": calibrate.run, "convert": convert.run, "engine": engine.run, "export": export.run,
    "reference": reference.run, "simplify": simplify.run, "validate": validate.run,
    "verify": verify.run,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "default": {"reduce_range": True},
    "symmetric": SYMMETRIC,
    "operators": {"quant_format": QuantFormat.QOperator},
}
OWN = {"quantize": {"tool": "source"}}
INT8 = {"name": "e", "backend": "onnxruntime", "precision": "int8"}
DATA = {"x": {"random": "normal"}}


def resolved(*engines: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    source = {"source": {"onnx": "net.onnx"}, "inputs": {"x": {"shape": ["batch", 3, 8, 8]}}}
    return manifest(**{**source, **sections}, engines=engines or (INT8,))


def run(
    spec: Mapping[str, Any], project: Path, until: str, *, leave_out: Collection[str] = ()
) -> dict[str, StageResult]:
    """Run the targets up to a stage, without the orchestrator."""
    results: dict[str, StageResult] = {}
    for action in plan_model(spec):
        if action.stage in RUNS.keys() - leave_out:
            files = job_files(action, project / "build")
            job = Job(
                target=action.target, stage=action.stage, model="m", variant=action.variant,
                options=action.options, project=project, **files,
            )  # fmt: skip
            results[action.stage] = RUNS[action.stage](job)
        if action.stage == until:
            break
    return results


def replace(model: ModelProto, name: str, values: Any) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.array(values, np.float32), name))


@pytest.mark.parametrize(("kind", "in_int8"), [("default", 1), ("symmetric", 1), ("operators", 3)])
def test_an_engine_computes_with_the_quantizers_of_its_source(
    tmp_path: Path, kind: str, in_int8: int
) -> None:
    quantized(tmp_path, **KINDS[kind])
    results = run(resolved(**OWN), tmp_path, "verify")
    assert {stage: result.status for stage, result in results.items()} == dict.fromkeys(
        ("export", "reference", "simplify", "validate", "engine", "verify"), "passed"
    )
    figures = results["engine"].figures
    assert figures["int8_layers"]["all"] == 3
    assert figures["int8_layers"]["int8"] >= in_int8
    assert executed_precision(figures).startswith("int8: ")
    assert figures["settings"]["graph_optimization_level"] == "all" or kind == "operators"
    limits = results["verify"].figures["tolerance"]
    assert (limits["rtol"], limits["spread_error"]) == (0.1, 0.2)


def test_openvino_takes_the_quantizers_too(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    quantized(tmp_path, **SYMMETRIC)
    results = run(resolved({**INT8, "backend": "openvino"}, **OWN), tmp_path, "verify")
    assert results["verify"].status == "passed", results["verify"].reason
    assert executed_precision(results["engine"].figures) == "int8: 3 of 3 layers"


def test_tensorrt_names_what_it_takes_of_quantizers(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    own = resolved({**INT8, "backend": "tensorrt_rtx"}, **OWN)
    quantized(tmp_path, **SYMMETRIC)
    assert run(own, tmp_path, "engine")["engine"].status == "passed"
    quantized(tmp_path)
    with pytest.raises(StageError, match=r"(?s)cannot take node .*zero points of 0 and biases in"):
        run(own, tmp_path, "engine")


@pytest.mark.parametrize("name", ["x_scale", "w2_scale"])
def test_engines_with_other_scales_fail(tmp_path: Path, name: str) -> None:
    quantized(tmp_path, **SYMMETRIC)
    spec = resolved(**OWN)
    run(spec, tmp_path, "simplify")
    graph = tmp_path / "build/m/simplify/model.onnx"
    wrong = onnx.load(graph)
    scale = next(t for t in wrong.graph.initializer if t.name == name)
    values = numpy_helper.to_array(scale)
    replace(wrong, name, values[::-1] if values.ndim else values / 8)
    onnx.save(wrong, graph)
    done = {"export", "reference", "simplify", "validate"}
    result = run(spec, tmp_path, "verify", leave_out=done)["verify"]
    assert result.status == "failed"
    assert "weights have 7 bits" in result.hint


@pytest.mark.parametrize("precision", ["int8", "fp16", "int4"])
def test_a_quantized_network_is_not_converted(tmp_path: Path, precision: str) -> None:
    quantized(tmp_path)
    spec = resolved({**INT8, "precision": precision}, calibration={"data": DATA})
    with pytest.raises(StageError, match=f"quantized already .* not converted to {precision}; set"):
        run(spec, tmp_path, "engine")


def test_a_network_without_the_declared_quantizers(tmp_path: Path) -> None:
    quantized(tmp_path)
    (tmp_path / "float.onnx").rename(tmp_path / "net.onnx")
    with pytest.raises(StageError, match="has no quantizers, though quantize"):
        run(resolved(**OWN), tmp_path, "engine")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (0.0, "the scale 0 in x_scale, and scales are positive"),
        (np.nan, "the scale nan in x_scale, and scales are positive"),
        ([1.0, 2.0], "a scale of the shape [2] and a zero point of []"),
        (None, "no scale: nothing writes 'x_scale'"),
    ],
)
def test_a_wrong_scale_is_named(tmp_path: Path, values: Any, problem: str) -> None:
    model = quantized(tmp_path, **SYMMETRIC)
    if values is None:
        kept = [tensor for tensor in model.graph.initializer if tensor.name != "x_scale"]
        del model.graph.initializer[:]
        model.graph.initializer.extend(kept)
    else:
        replace(model, "x_scale", values)
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(StageError) as error:
        run(resolved(**OWN), tmp_path, "export")
    assert f"the quantizer QuantizeLinear x_QuantizeLinear of net.onnx has {problem};" in str(
        error.value
    )


def test_scales_that_do_not_fit_the_channels() -> None:
    stored = {"w": weights(4, 3).astype(np.int8), "s": np.ones(3, np.float32)}
    model = parse(
        "(float[n,3] x) => (float[n,4] y) { [dq] d = DequantizeLinear <axis = 0> (w, s)\n"
        "t = Transpose(d) y = MatMul(x, t) }",
        stored,
    )
    with pytest.raises(StageError, match="dq of m has 3 scales in s along axis 0 of the"):
        check_scales(model, "m")
    next(a for a in model.graph.node[0].attribute).CopyFrom(helper.make_attribute("axis", 1))
    check_scales(model, "m")


def test_a_proposal_has_the_quantizers(tmp_path: Path) -> None:
    options = {"source": {"onnx": "net.onnx", "seed": 0}, "inputs": {}, "outputs": {}}
    quantized(tmp_path)
    for file, has_quantizers in (("net.onnx", True), ("float.onnx", False)):
        options["source"] = {"onnx": file, "seed": 0}
        outputs = {"result": tmp_path / "result.json"}
        job = Job(
            target="new:m", stage="new", model="m", variant="", options=options, project=tmp_path,
            inputs={}, outputs=outputs,
        )  # fmt: skip
        assert proposal.run(job).figures["has_quantizers"] is has_quantizers


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 64, 5)

    def forward(self, x):
        first = torch.relu(self.first(x))
        return self.head((self.second(first) + first).flatten(1))


@pytest.mark.filterwarnings("ignore")
def test_a_network_quantized_by_torchao(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    for name in ("torch", "torch.__trace"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)
    x, dims = torch.randn(4, 3, 8, 8), ({0: torch.export.Dim("batch", min=1, max=8)},)
    program = torch.export.export(Residual().eval(), (x,), dynamic_shapes=dims)
    config = x86.get_default_x86_inductor_quantization_config(reduce_range=True)
    prepared = pt2e.prepare_pt2e(program.module(), x86.X86InductorQuantizer().set_global(config))
    prepared(x)
    network = pt2e.convert_pt2e(prepared)
    assert main_float_type(network) == "int8"
    exported = torch.onnx.export(
        torch.export.export(network, (x,), dynamic_shapes=dims), dynamo=True, opset_version=21,
        input_names=["x"], output_names=["y"],
    )  # fmt: skip
    exported.save(tmp_path / "net.onnx")
    results = run(resolved(**OWN), tmp_path, "verify")
    assert {result.status for result in results.values()} == {"passed"}
    assert results["engine"].figures["int8_layers"]["all"] == 3
    assert load_case(tmp_path / "build/m/reference/min.npz").float_type == "int8"


def test_fake_quantizers_are_quantizers() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4))
    assert main_float_type(layers) == "float32"
    layers.append(torch.ao.quantization.FakeQuantize())
    assert main_float_type(layers) == "int8"
