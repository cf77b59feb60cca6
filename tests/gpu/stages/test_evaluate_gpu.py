"""Accuracy on data of TensorRT engines: the example of docs/accuracy.md on a GPU."""

import os
import shutil
from pathlib import Path

import pytest
import yaml
from accuracy_example import EXAMPLE, evaluated, spoil_calibration, train
from gpu_marks import TENSORRT_ON_GPU
from model_project import ENGINE, gpu_project
from project_folder import ProjectFolder

pytestmark = [*TENSORRT_ON_GPU, pytest.mark.timeout(1200)]


@pytest.fixture
def example(tmp_path: Path) -> ProjectFolder:
    """The trained example, whose engines are of TensorRT."""
    project = gpu_project(tmp_path / "project")
    for name in ("networks", "weights", "train.py"):
        copy = shutil.copytree if (EXAMPLE / name).is_dir() else shutil.copy
        copy(EXAMPLE / name, project.root / name)
    for name in ("digits", "shapes"):
        shutil.copy(EXAMPLE / f"configs/models/{name}.yaml", project.root / "configs/models")
    toolchain = {"toolchain": "gpu"} if os.environ.get("BUILDSYS_TEST_TOOLCHAIN") else {}
    engines = {
        "trt-fp32": {**ENGINE, **toolchain, "precision": "fp32"},
        "trt-int8": {**ENGINE, **toolchain, "precision": "int8", "quantization": "explicit"},
    }
    (project.root / "configs/engines.yaml").write_text(yaml.safe_dump(engines))
    with (project.root / "configs/project.yaml").open("a") as file:
        file.write("defaults: {engines: [trt-fp32, trt-int8], export: {opset: 17}}\n")
    train(project, "digits", "shapes")
    return project


def test_low_precision_holds_the_metric(example: ProjectFolder) -> None:
    done = example.buildsys("build", "evaluate:digits", "evaluate:shapes:trt-int8")
    assert done.code == 0, done.out + done.err
    for model, engine in (("digits", "trt-fp32"), ("digits", "trt-int8"), ("shapes", "trt-int8")):
        content = evaluated(example, model, engine)
        assert (content["status"], content["verdict"]) == ("passed", "passed")
        assert content["original"] > 0.7
        assert content["samples"] == {"digits": 797, "shapes": 300}[model]


def test_bad_calibration_fails_by_the_metric(example: ProjectFolder) -> None:
    spoil_calibration(example)
    done = example.buildsys("build", "evaluate:digits:trt-int8")
    assert done.code == 1, done.out + done.err
    assert "verify:digits:trt-int8" in done.passed
    content = evaluated(example, "digits", "trt-int8")
    assert content["verdict"] == "failed"
    assert content["low"] > 0.2
