"""Accuracy on data of TensorRT engines: the example of docs/accuracy.md on a GPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from gpu_marks import TENSORRT_ON_GPU
from model_project import gpu_project
from project_folder import REPOSITORY, TIMEOUT_S, ProjectFolder

pytestmark = [*TENSORRT_ON_GPU, pytest.mark.timeout(1200)]
EXAMPLE = REPOSITORY / "docs/examples/accuracy"
DARK = '''

def dark(shape, dtype, which, seed):
    """Draw images with values up to 0.02."""
    return examples(shape, dtype, which, seed) / 50
'''
# cuBLAS and cuDNN need not be there
ENGINE: dict[str, Any] = {
    "backend": "tensorrt",
    "tactic_sources": ["edge_mask_convolutions", "jit_convolutions"],
}


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
    subprocess.run(
        [sys.executable, "train.py", "digits", "shapes"], cwd=project.root, check=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    return project


def result(project: ProjectFolder, model: str, engine: str) -> dict[str, Any]:
    path = project.root / f"build/{model}/evaluate/{engine}.json"
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_low_precision_holds_the_metric(example: ProjectFolder) -> None:
    done = example.buildsys("build", "evaluate:digits", "evaluate:shapes:trt-int8")
    assert done.code == 0, done.out + done.err
    for model, engine in (("digits", "trt-fp32"), ("digits", "trt-int8"), ("shapes", "trt-int8")):
        content = result(example, model, engine)
        assert (content["status"], content["verdict"]) == ("passed", "passed")
        assert content["original"] > 0.7
        assert content["samples"] == {"digits": 797, "shapes": 300}[model]


def test_bad_calibration_fails_by_the_metric(example: ProjectFolder) -> None:
    with (example.root / "networks/digits.py").open("a") as file:
        file.write(DARK)
    data = "{data: {image: {python: networks/digits.py:dark}}, batches: 4}\n"
    wide = "{rtol: 100, cosine: -1, class_agreement: 0, correlation: -1, spread_error: 100, "
    wide += "slope: 100, channel_error: 100}"
    example.edit(
        "configs/models/digits.yaml", "{batches: 4}\n", f"{data}verify: {{int8: {wide}}}\n"
    )
    done = example.buildsys("build", "evaluate:digits:trt-int8")
    assert done.code == 1, done.out + done.err
    assert "verify:digits:trt-int8" in done.passed
    content = result(example, "digits", "trt-int8")
    assert content["verdict"] == "failed"
    assert content["low"] > 0.2
