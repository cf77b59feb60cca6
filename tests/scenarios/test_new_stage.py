"""A stage added to a copy of the package as docs/architecture.md says: one folder, one row."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import buildsys

PACKAGE = Path(buildsys.__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"
MANIFEST = """\
model: m
source: {onnx: net.onnx}
inputs:
  x: {shape: [2, 4]}
engines:
  - {backend: onnxruntime, name: ort}
sparsity: {least: 0.6}
bench: {duration: 0.1s, warmup: 0s, baselines: [], noise: null}
"""
Run = Callable[..., str]


def recipe() -> str:
    page = PAGE.read_text(encoding="utf-8")
    return page.partition("### Add a stage\n")[2].partition("\n### ")[0]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Add the stage of the recipe to a copy of the package."""
    copy = tmp_path / "code" / "buildsys"
    shutil.copytree(PACKAGE, copy)  # compiled files are reused
    blocks = re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)^```", recipe(), re.M | re.S)
    for file, code in blocks:
        place = copy / file
        assert not place.exists(), file
        place.parent.mkdir(exist_ok=True)
        place.write_text(code, encoding="utf-8")
    files = [Path(file).stem for file, _ in blocks]
    assert files == ["fields", "plan", "result", "stage", "report"]
    ((following, row),) = re.findall(
        r"<!-- row before: (\w+) -->\n```python\n(.*?)\n```", recipe(), re.S
    )
    table = copy / "stages" / "table.py"
    code = table.read_text(encoding="utf-8")
    (found,) = re.findall(rf"^    StageInfo\(\s*{following},", code, re.M)
    table.write_text(code.replace(found, f"    {row},\n{found}"), encoding="utf-8")
    return copy


def save_network(folder: Path, array: NDArray[np.float32]) -> None:
    """Write a model that multiplies by a matrix."""
    weights = numpy_helper.from_array(array, "w")
    ports = [helper.make_tensor_value_info(name, 1, [2, 4]) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "net.onnx")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "configs" / "models").mkdir(parents=True)
    (folder / "configs" / "models" / "m.yaml").write_text(MANIFEST)
    shutil.copy(PACKAGE.parent / "dodo.py", folder)
    save_network(folder, np.eye(4, dtype="float32"))
    return folder


@pytest.fixture
def run(package: Path, project: Path, shared_servers: Path) -> Run:
    """Run a program with the copy of the package; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}

    def run(*command: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            capture_output=True, text=True, cwd=project, env=environment,
        )  # fmt: skip
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def test_a_folder_and_a_row_are_a_stage(run: Run, project: Path) -> None:
    listed = run("doit", "list", "--all")
    assert re.search(r"^sparsity:m +count the zeros in the weights of m$", listed, re.M)
    assert re.search(r"^sparsity +count the zeros in the weights$", listed, re.M)
    run("buildsys", "build", "m")
    result = json.loads((project / "build/m/sparsity/sparsity.json").read_text())
    assert (result["status"], result["values"], result["zeros"]) == ("passed", 16, 12)
    report = (project / "build/m/report/report.md").read_text(encoding="utf-8")
    assert re.search(r"sparsity.*75.* % of the weights are 0", report)
    assert re.search(r"^fresh +sparsity:m", run("buildsys", "explain", "m:sparsity"), re.M)
    assert "least: 0.6" in run("buildsys", "resolve", "m")
    save_network(project, np.ones((4, 4), "float32"))
    assert "upstream: simplify:m may rerun" in run("buildsys", "explain", "sparsity:m")
    assert "too few weights are 0" in run("buildsys", "build", "sparsity:m", code=1)
