"""TensorRT engines with preprocessing inside, and of networks with their own quantizers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from gpu_marks import TENSORRT_ON_GPU
from model_project import ENGINE, gpu_project
from project_folder import ProjectFolder
from quantized_networks import SYMMETRIC, quantized

pytestmark = TENSORRT_ON_GPU
NETWORK = """\
import torch


class Net(torch.nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        conv = torch.nn.Conv2d(3, 16, 3, 2), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, 2)
        super().__init__(*conv, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10))
"""
IMAGE = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


@pytest.fixture
def project(tmp_path: Path) -> ProjectFolder:
    return gpu_project(tmp_path / "project")


def built(project: ProjectFolder, manifest: dict[str, Any], **engine: Any) -> dict[str, Any]:
    """Build and verify an engine of TensorRT; return the results by stage."""
    own = {**ENGINE, "name": "trt", "tf32": False, **engine}
    if os.environ.get("BUILDSYS_TEST_TOOLCHAIN"):
        own["toolchain"] = "gpu"
    manifest = {"model": "net", **manifest, "engines": [own]}
    manifest["bench"] = {"duration": "500ms", "baselines": [], "noise": None, "cold_start": 1}
    (project.root / "configs/models/net.yaml").write_text(yaml.safe_dump(manifest))
    ran = project.doit("verify:net:trt", "bench:net:trt")
    assert ran.code == 0, ran.out + ran.err
    files = {"engine": "engine/trt/engine.json", "verify": "verify/trt.json"}
    files["bench"] = "bench/trt.json"
    return {
        stage: json.loads((project.root / "build/net" / file).read_text())
        for stage, file in files.items()
    }


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_images_of_all_sizes_are_prepared_by_the_engine(
    project: ProjectFolder, precision: str
) -> None:
    (project.root / "net.py").write_text(NETWORK)
    steps = {"inside": True, "size": ["height", "width"], "resize": 20, **IMAGE}
    sizes = {"min": 12, "opt": 40, "max": 90}
    results = built(
        project,
        {
            "source": {"python": "net.py:Net"},
            "inputs": {"x": {"shape": ["batch", 3, 16, 16], "preprocess": steps}},
            "dims": {"batch": {"min": 1, "opt": 2, "max": 3}, "height": sizes, "width": sizes},
        },
        precision=precision,
        precision_share=0,  # so small a network may be faster in fp32
    )
    assert results["verify"]["status"] == "passed"
    assert results["engine"]["inputs"][0]["dtype"] == "uint8"
    # a process of its own has loaded the engine and seen the GPU's memory
    (start,) = [start for start in [results["bench"]["cold_start"]] if start]
    assert "gpu" in json.dumps(start)


def test_quantizers_of_the_source_are_used(project: ProjectFolder) -> None:
    options = {**SYMMETRIC, "reduce_range": False}
    quantized(project.root, channels=32, size=16, **options)
    results = built(
        project,
        {
            "source": {"onnx": "net.onnx"},
            "inputs": {"x": {"shape": ["batch", 3, 16, 16]}},
            "dims": {"batch": {"min": 1, "opt": 2, "max": 4}},
            "quantize": {"tool": "source"},
        },
        precision="int8",
    )
    assert results["verify"]["status"] == "passed"
    assert results["engine"]["precision_shares"]["layers"].get("int8", 0) > 0
