"""Verified TensorRT engines of torchvision models in each precision.

They take minutes each. BUILDSYS_TEST_MODELS=resnet18,resnet50 restricts them;
BUILDSYS_TEST_PROJECT=FOLDER keeps what is built, and the next run goes on from there.
"""

import os
from pathlib import Path

import pytest
from gpu_marks import TENSORRT_ON_GPU
from model_project import BATCHES, MODELS, PRECISIONS, ModelProject, make_project

pytestmark = [*TENSORRT_ON_GPU, pytest.mark.timeout(3600)]
WANTED = tuple(filter(None, os.environ.get("BUILDSYS_TEST_MODELS", "").split(","))) or MODELS


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> ModelProject:
    folder = os.environ.get("BUILDSYS_TEST_PROJECT")
    return make_project(Path(folder) if folder else tmp_path_factory.mktemp("models"), WANTED)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", WANTED)
def test_an_engine_has_the_requested_settings(
    project: ModelProject, model: str, precision: str
) -> None:
    name = f"trt-{precision}"
    ran = project.doit(f"verify:{model}:{name}")
    assert ran.returncode == 0, ran.stdout
    engine, verified = (project.result(stage, model, name) for stage in ("engine", "verify"))
    assert (engine["status"], verified["status"]) == ("passed", "passed"), ran.stdout
    assert engine["profiles"][0]["input0"] == {
        case: [batch, 3, 224, 224] for case, batch in BATCHES.items()
    }
    shares = engine["precision_shares"]["layers"]
    lower = {"fp16": ("float16",), "int8": ("int8",)}.get(precision, ("float32",))
    assert sum(shares.get(dtype, 0) for dtype in lower) > 0.1, shares


@pytest.mark.parametrize("model", ["resnet50", "regnet_y_400mf"])
def test_a_dynamo_export_runs_in_every_version(tmp_path: Path, model: str) -> None:
    export = {"exporter": "dynamo", "opset": 18}
    project = make_project(tmp_path, [model], ["fp32"], export, baselines=[])
    ran = project.doit(f"verify:{model}:trt-fp32", f"bench:{model}:trt-fp32")
    assert ran.returncode == 0, ran.stdout
    for stage in ("engine", "verify", "bench"):
        assert project.result(stage, model, "trt-fp32")["status"] == "passed", ran.stdout
    timed = project.result("bench", model, "trt-fp32")
    assert timed["machine"]["bytes_per_s"] > 1e11
    assert timed["machine"]["missing"] == ["no PyTorch baseline measures the peak of the GPU"]
    cold = timed["cold_start"]
    assert cold["gpu_called_bytes"][0] >= cold["gpu_loaded_bytes"][0] > cold["gpu_imports_bytes"][0]
    lowered = project.root / f"build/{model}/convert/opset17/model.onnx"
    version = project.result("engine", model, "trt-fp32")["built_with"]["tensorrt"]
    assert lowered.is_file() is version.startswith("8.")  # later ones read opset 18
