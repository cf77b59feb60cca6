"""Engines of ONNX Runtime's CUDA provider, built, verified and timed on a GPU."""

import shutil
from pathlib import Path

import onnxruntime
import pytest
import yaml
from gpu_marks import ON_GPU
from model_project import ROOT, ModelProject

_NO_PROVIDER = "CUDAExecutionProvider" not in onnxruntime.get_available_providers()
pytestmark = [
    *ON_GPU,
    pytest.mark.skipif(_NO_PROVIDER, reason="this onnxruntime has no CUDA provider"),
    pytest.mark.timeout(900),
]
NETWORK = """\
from torch import nn


def make():
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
"""


def test_engines_on_cuda_run_there(tmp_path: Path) -> None:
    (tmp_path / "configs/models").mkdir(parents=True)
    (tmp_path / "net.py").write_text(NETWORK)
    (tmp_path / "pyproject.toml").touch()
    shutil.copy(ROOT / "dodo.py", tmp_path)
    cuda = {"backend": "onnxruntime", "providers": [{"cuda": {"use_tf32": False}}, "cpu"]}
    manifest = {
        "model": "net",
        "source": {"python": "net.py:make", "randomize": True},
        "inputs": {"x": {"shape": ["batch", 3, 32, 32]}},
        "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
        "engines": [{"name": "cuda", **cuda}, {"name": "half", **cuda, "precision": "fp16"}],
        "bench": {"duration": "200ms", "baselines": ["torch"], "noise": None},
    }
    file = tmp_path / "configs/models/net.yaml"
    file.write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")
    project = ModelProject(tmp_path)
    ran = project.doit("build:net")
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout
    for name in ("cuda", "half"):
        engine, verified, timed = (
            project.result(stage, "net", name) for stage in ("engine", "verify", "bench")
        )
        found = [each["status"] for each in (engine, verified, timed)]
        assert found == ["passed"] * 3, ran.stdout
        assert engine["placement"]["cuda"]["nodes"] > 0, engine["placement"]
