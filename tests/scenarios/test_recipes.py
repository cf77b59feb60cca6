"""The recipes of docs/architecture.md, applied to a copy of the package: stage, field, …"""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
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
  - {backend: reference, name: second}
sparsity: {least: 0.6}
bench: {duration: 0.1s, warmup: 0s, baselines: [], noise: null, cold_start: 0}
"""
Run = Callable[..., str]


def apply_recipes(page: str, package: Path) -> None:
    """Do what the comments before the blocks of code say."""
    steps = re.findall(r"^<!-- (.*?) -->\n(?:```python\n(.*?)^```)?", page, re.M | re.S)
    for step, code in steps:
        match re.findall(r'"[^"]+"|\S+', step):
            case ["file:", file]:
                assert not (package / file).exists(), file
                (package / file).parent.mkdir(exist_ok=True)
                (package / file).write_text(code, encoding="utf-8")
            case ["copy", folder, "to", place]:
                shutil.copytree(PACKAGE.parent / folder, package / place)
            case ["after", text, "in", file]:
                insert(package / file, text.strip('"'), code, before=False)
            case ["row", "before", text, "in", file]:
                insert(package / file, text.strip('"'), code, before=True)
            case _:
                pytest.fail(f"there is no such step: {step}")
    assert len(steps) == 11


def insert(file: Path, text: str, code: str, *, before: bool) -> None:
    """Insert lines at the only one that begins with ``text``, or at the row that does."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    starts = (text, f'"{text}"', f"{text},", f"StageInfo({text}")
    (index,) = [n for n, line in enumerate(lines) if line.strip().startswith(starts)]
    index -= before and lines[index - 1].strip() == "StageInfo("  # a row of several lines
    indent = " " * (len(lines[index]) - len(lines[index].lstrip()))
    code = textwrap.indent(f"{code.rstrip()},\n" if before else code, indent)
    lines.insert(index if before else index + 1, code)
    file.write_text("".join(lines), encoding="utf-8")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Apply the recipes to a copy of the package."""
    copy = tmp_path / "code" / "buildsys"
    shutil.copytree(PACKAGE, copy)  # compiled files are reused
    apply_recipes(PAGE.read_text(encoding="utf-8").partition("## Recipes\n")[2], copy)
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


def test_a_package_with_all_recipes_builds_a_model(run: Run, project: Path) -> None:
    listed = run("doit", "list", "--all")
    assert re.search(r"^sparsity:m +count zeros in weights$", listed, re.M)
    assert re.search(r"^sparsity +count zeros in weights$", listed, re.M)
    run("buildsys", "build", "m")
    result = json.loads((project / "build/m/sparsity/sparsity.json").read_text())
    assert (result["status"], result["values"], result["zeros"]) == ("passed", 16, 12)
    verified = json.loads((project / "build/m/verify/second.json").read_text())
    assert verified["status"] == "passed"
    report = (project / "build/m/report/report.md").read_text(encoding="utf-8")
    assert re.search(r"sparsity.*75.* % of the weights are 0", report)
    assert re.search(r"^fresh +sparsity:m", run("buildsys", "explain", "m:sparsity"), re.M)
    assert "least: 0.6" in run("buildsys", "resolve", "m")
    assert run("buildsys", "zeros", "m") == "m: 12 weights are 0\n"
    assert "count the weights of a model that are 0" in run("buildsys", "help")


def test_a_new_field_is_in_the_key_and_in_the_schema(run: Run, project: Path) -> None:
    manifest = project / "configs/models/m.yaml"
    run("buildsys", "build", "sparsity:m")
    manifest.write_text(MANIFEST.replace("least: 0.6", "least: 0.6, zero: 1"))
    assert "zero: 0.0 → 1.0" in run("buildsys", "explain", "sparsity:m")
    run("buildsys", "build", "sparsity:m")
    assert run("buildsys", "zeros", "m") == "m: 16 weights are 0\n"
    run("buildsys", "schema")
    schema = (project / "configs/schema/model.schema.json").read_text(encoding="utf-8")
    assert "Largest magnitude that counts as 0." in schema
    manifest.write_text(MANIFEST.replace("least: 0.6", "zero: -1"))
    run("buildsys", "list", code=3)
    manifest.write_text(MANIFEST)
    save_network(project, np.ones((4, 4), "float32"))
    assert "upstream: simplify:m may rerun" in run("buildsys", "explain", "sparsity:m")
    assert "too few weights are 0" in run("buildsys", "build", "sparsity:m", code=1)
