"""Plugins that TensorRT ships: built, verified, timed and loaded on a GPU.

The interpreter that has TensorRT is this one, or that of BUILDSYS_TEST_TOOLCHAIN=/path/to/python.
The plugins need neither cuBLAS nor cuDNN.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from example_pages import write_files
from gpu_marks import TENSORRT_ON_GPU
from model_project import gpu_project
from project_folder import REPOSITORY, ProjectFolder, Ran

pytestmark = [*TENSORRT_ON_GPU, pytest.mark.timeout(600)]
PAGE = REPOSITORY / "docs/remedies/plugins.md"
NETWORK = """\
import torch


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, is_relu):
        return x.relu() if is_relu else torch.nn.functional.gelu(x, approximate="tanh")

    @staticmethod
    def symbolic(g, x, is_relu):
        return g.op("trt::CustomGeluPluginDynamic", x, type_id_i=0).setType(x.type())


class Net(torch.nn.Module):
    def __init__(self, is_relu):
        super().__init__()
        torch.manual_seed(0)
        self.is_relu = is_relu
        self.first, self.last = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 4, 3)

    def forward(self, x):
        return self.last(Gelu.apply(self.first(x), self.is_relu)).mean((2, 3))
"""
QUICK = {"duration": "50ms", "warmup": "10ms", "baselines": [], "noise": None, "cold_start": 0}
# cuBLAS and cuDNN need not be there
TACTICS = "tactic_sources: [edge_mask_convolutions, jit_convolutions]"


@pytest.fixture
def project(tmp_path: Path) -> ProjectFolder:
    return gpu_project(tmp_path / "project")


def engine() -> str:
    """Return the engine of every model here, as YAML."""
    toolchain = ", toolchain: gpu" if os.environ.get("BUILDSYS_TEST_TOOLCHAIN") else ""
    return f"{{name: trt, backend: tensorrt, tf32: false, {TACTICS}{toolchain}}}"


def gelu(project: ProjectFolder, *, is_relu: bool = False) -> None:
    """Write a network with a plugin that computes GELU; ``forward`` may be another function."""
    (project.root / "plugins/models/gelu.py").write_text(NETWORK)
    (project.root / "configs/models/gelu.yaml").write_text(f"""\
model: gelu
source: {{python: "plugins/models/gelu.py:Net", kwargs: {{is_relu: {str(is_relu).lower()}}}}}
inputs: {{x: {{shape: [batch, 3, 16, 16]}}}}
outputs: {{y: {{shape: [batch, 4]}}}}
dims: {{batch: {{min: 1, opt: 4, max: 8}}}}
export: {{custom_opsets: {{trt: 1}}}}
ops: [{{op: "trt::CustomGeluPluginDynamic", plugin: {{bundled: true}}}}]
engines: [{engine()}]
bench: {json.dumps(QUICK)}
""")


def detector(project: ProjectFolder) -> None:
    """Write the example of the page."""
    write_files(project, PAGE)
    (project.root / "plugins/models").mkdir(parents=True, exist_ok=True)
    shutil.copy(REPOSITORY / "plugins/models/nms.py", project.root / "plugins/models")
    manifest = "configs/models/nms.yaml"
    project.edit(manifest, "{name: trt, backend: tensorrt, tf32: false}", engine())
    with (project.root / manifest).open("a") as file:
        file.write(f"bench: {json.dumps(QUICK)}\n")


def run(project: ProjectFolder, *arguments: str, code: int = 0) -> Ran:
    """Build targets, or run a command; an unexpected end shows its output and all logs."""
    is_target = ":" in arguments[0]
    ran = project.doit(*arguments) if is_target else project.buildsys(*arguments)
    if ran.code != code:
        logs = sorted((project.root / "build").rglob("*.log"))
        texts = [f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs]
        shown = "\n".join([ran.out, ran.err, *texts])
        pytest.fail(f"{' '.join(arguments)}: exit code {ran.code}, not {code}\n{shown}")
    return ran


def result(project: ProjectFolder, path: str) -> dict[str, Any]:
    return dict(json.loads((project.root / "build" / path).read_text()))


def check_record(project: ProjectFolder, model: str, name: str) -> None:
    """Check what the results of a built model say of its plugin."""
    record = result(project, f"{model}/engine/trt/engine.json")
    version = record["built_with"]["tensorrt"]
    (plugin,) = record["plugins"]
    release = plugin.pop("bundled")
    assert release.startswith("TensorRT ")
    assert version.startswith(release.removeprefix("TensorRT "))
    assert plugin == {
        "operator": f"trt::{name}", "name": name, "version": "1", "namespace": "",
    }  # fmt: skip
    assert record["operators"] == {f"trt::{name}": "plugin"}
    assert [kind for kind in record["layers"] if kind.startswith("plugin")], record["layers"]
    assert result(project, f"{model}/validate/result.json")["status"] == "unavailable"
    verified = result(project, f"{model}/verify/trt.json")
    assert {"min", "opt", "max", "odd"} <= verified["cases"].keys()
    assert result(project, f"{model}/bench/trt.json")["status"] == "passed"


def test_a_bundled_plugin_is_built_verified_timed_and_loaded(project: ProjectFolder) -> None:
    gelu(project)
    run(project, "build:gelu")
    check_record(project, "gelu", "CustomGeluPluginDynamic")
    shown = run(project, "doctor", "gelu:trt")
    assert "it can run here" in shown.out, shown.out
    run(project, "run", "gelu:trt", "--input", "build/gelu/reference/opt.npz")
    run(project, "inspect", "gelu:engine:trt")
    again = run(project, "build:gelu")
    assert not again.ran, again.out


def test_a_forward_that_differs_from_the_plugin_fails(project: ProjectFolder) -> None:
    gelu(project, is_relu=True)
    ran = run(project, "verify:gelu:trt", code=1)
    assert "the engine trt of gelu is wrong" in ran.out, ran.out


def test_the_detector_of_the_page(project: ProjectFolder) -> None:
    detector(project)
    run(project, "build:nms")
    check_record(project, "nms", "EfficientNMS_TRT")
    project.edit("plugins/models/nms.py", "value, label, iou)", "value, label, iou + 0.3)")
    ran = run(project, "verify:nms:trt", code=1)
    assert "the engine trt of nms is wrong" in ran.out, ran.out
