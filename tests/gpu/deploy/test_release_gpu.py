"""One URL: with its GPU and with the GPU hidden, this machine chooses different engines."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from gpu_marks import TENSORRT_ON_GPU
from model_project import ENGINE, gpu_project
from toolchain import PYTHON, ROOT

pytestmark = TENSORRT_ON_GPU
NETWORK = """\
import torch


class Net(torch.nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU()]
        for _ in range(6):
            layers += [torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU()]
        super().__init__(*layers)
"""
MANIFEST: dict[str, Any] = {
    "model": "net",
    "source": {"python": "net.py:Net"},
    "inputs": {"x": {"shape": ["batch", 3, 64, 64]}},
    "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
    "engines": [
        {"backend": "onnxruntime", "name": "ort-cpu"},
        {**ENGINE, "name": "trt", "tf32": False},
    ],
    "bench": {"duration": "1s", "baselines": [], "noise": None, "cold_start": 0},
}


def test_a_cpu_machine_and_a_gpu_choose_differently_from_one_url(tmp_path: Path) -> None:
    project = gpu_project(tmp_path / "project")
    (project.root / "net.py").write_text(NETWORK)
    engines = MANIFEST["engines"]
    if PYTHON:
        engines[1]["toolchain"] = "gpu"
    (project.root / "configs/models/net.yaml").write_text(yaml.safe_dump(MANIFEST))
    built = project.buildsys("build", "net")
    assert built.code == 0, built.out + built.err
    url = str(tmp_path / "releases")
    published = project.buildsys("publish", "net", url, "--release", "1.0")
    assert published.code == 0, published.out + published.err
    assert project.buildsys("release", "promote", url, "1.0").code == 0

    def choose(python: str, **variables: str) -> dict[str, Any]:
        command = [python, "-m", "buildsys.release", url, "--json"]
        command += ["--download", str(tmp_path / "cache")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    on_gpu = choose(PYTHON or sys.executable)
    assert (on_gpu["engine"], on_gpu["ranked"][0]["same_device"]) == ("net:trt", True)
    assert Path(on_gpu["folder"], "engine.engine").is_file()
    on_cpu = choose(sys.executable, CUDA_VISIBLE_DEVICES="")
    assert on_cpu["engine"] == "net:ort-cpu"
    (refused,) = on_cpu["refused"]
    assert refused["engine"] == "net:trt"
    assert "gpu" in [reason["kind"] for reason in refused["reasons"]]
