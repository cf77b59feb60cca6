"""Networks defined by hand: built, verified, timed and run on a GPU.

The interpreter that has TensorRT is this one, or that of BUILDSYS_TEST_TOOLCHAIN=/path/to/python.
"""

import os
import shutil
from typing import Any

import numpy as np
import pytest
import yaml
from gpu_marks import TENSORRT_ON_GPU
from model_project import ROOT, ModelProject

pytestmark = [*TENSORRT_ON_GPU, pytest.mark.timeout(1800)]
FILES = {
    "plugins/small.py": """\
def define(network, trt, weights, bias=True):
    x = network.add_input("x", trt.float32, (-1, 3, 16, 16))
    kernel = weights["conv.weight"]
    conv = network.add_convolution_nd(x, 16, (3, 3), kernel, weights["conv.bias"] * bias)
    conv.name = "conv"
    conv.padding_nd = (1, 1)
    relu = network.add_activation(conv.get_output(0), trt.ActivationType.RELU)
    relu.name = "relu"
    flat = network.add_shuffle(relu.get_output(0))
    flat.name = "flatten"
    flat.reshape_dims = (0, -1)
    flat.get_output(0).name = "y"
    network.mark_output(flat.get_output(0))
""",
    "plugins/small_torch.py": """\
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)

    def forward(self, x):
        return self.conv(x).relu().flatten(1)
""",
}  # fmt: skip
IMAGE = {"x": {"shape": ["batch", 3, 16, 16]}}
DIMS = {"batch": {"min": 1, "opt": 4, "max": 8}}


def write_model(project: ModelProject, name: str, source: dict[str, Any], **fields: Any) -> None:
    sources = os.environ.get("BUILDSYS_TEST_TACTIC_SOURCES", "").lower()
    engine = {
        "backend": "tensorrt", "tf32": False,
        **({"toolchain": "other"} if os.environ.get("BUILDSYS_TEST_TOOLCHAIN") else {}),
        **({"tactic_sources": sources.split(",")} if sources else {}),
    }  # fmt: skip
    engines = fields.pop("engines", [{"name": "trt"}])
    content = {
        "model": name, "source": source, "inputs": IMAGE,
        "outputs": {"y": {"shape": ["batch", 4096], "dtype": "float32"}}, "dims": DIMS,
        "engines": [{**engine, **each} for each in engines],
        "bench": {"duration": "200ms", "baselines": ["torch"], "cuda_graph": [False, True],
                  "noise": None},
        **fields,
    }  # fmt: skip
    file = project.root / f"configs/models/{name}.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def small(function: str = "define", seed: int = 0, **fields: Any) -> dict[str, Any]:
    reference = {"python": "plugins/small_torch.py:Small", "randomize": True, "seed": seed}
    return {"tensorrt": f"plugins/small.py:{function}", "reference": reference, **fields}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> ModelProject:
    root = tmp_path_factory.mktemp("defined")
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    (root / "configs/models").mkdir(parents=True)
    (root / "data").mkdir()
    shutil.copy(ROOT / "dodo.py", root)
    shutil.copy(ROOT / "buildsys/cli/templates/doit.cfg", root)
    python = os.environ.get("BUILDSYS_TEST_TOOLCHAIN", "")
    toolchains = {"toolchains": {"other": {"python": python}}} if python else {}
    (root / "configs/project.yaml").write_text(yaml.safe_dump(toolchains), encoding="utf-8")
    return ModelProject(root)


def test_a_defined_network_is_built_verified_timed_and_run(project: ModelProject) -> None:
    engines = [{"name": "trt"}, {"name": "half", "precision": "fp16", "precision_share": 0}]
    write_model(project, "small", small(), engines=engines)
    ran = project.doit("build:small")
    assert ran.returncode == 0, ran.stdout
    for name in ("trt", "half"):
        engine, verified, timed = (
            project.result(stage, "small", name) for stage in ("engine", "verify", "bench")
        )
        found = [each["status"] for each in (engine, verified, timed)]
        assert found == ["passed"] * 3, ran.stdout
        assert len(engine["definition_sha256"]) == 64
        assert verified["cases"].keys() >= {"min", "opt", "max"}
        named = {node for layer in engine["layer_nodes"] for node in layer["nodes"]}
        assert "conv" in named, engine["layer_nodes"]
    shown = project.buildsys("inspect", "small:engine:trt")
    assert "made of" in shown.stdout
    assert "conv" in shown.stdout
    assert project.buildsys("doctor", "small:trt").returncode == 0
    image = np.random.default_rng(0).standard_normal((3, 3, 16, 16)).astype(np.float32)
    np.save(project.root / "x.npy", image)
    ran = project.buildsys("run", "small:trt", "--input", "x.npy", "--output", "y.npz")
    assert ran.returncode == 0, ran.stdout
    assert np.load(project.root / "y.npz")["y"].shape == (3, 4096)
    again = project.doit("build:small")
    assert "reference:small" not in again.stdout, again.stdout


def test_a_wrong_network_fails_its_check(project: ModelProject) -> None:
    write_model(project, "wrong", small(kwargs={"bias": False}))
    ran = project.doit("verify:wrong:trt")
    assert ran.returncode == 1, ran.stdout
    assert project.result("engine", "wrong", "trt")["status"] == "passed"
    verified = project.result("verify", "wrong", "trt")
    assert verified["status"] == "failed"
    assert "output 'y'" in verified["reason"]
