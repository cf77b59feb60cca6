"""``python -m buildsys`` finds the project of the current folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from project_folder import REPOSITORY


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "buildsys", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_a_subfolder_of_a_project(tmp_path: Path) -> None:
    for name in ("dodo.py", "pyproject.toml"):
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    models = tmp_path / "configs/models"
    models.mkdir(parents=True)
    (tmp_path / "net.onnx").touch()
    (models / "net.yaml").write_text(
        "model: net\nsource: {onnx: net.onnx}\ninputs: {x: {shape: [1]}}\n"
    )
    ran = run(models, "plan", "build:net")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith(f"in {tmp_path}")
    assert "export:net" in ran.stdout


def test_outside_of_a_project(tmp_path: Path) -> None:
    ran = run(tmp_path, "list")
    assert ran.returncode == 3
    assert "is not in a project (a folder with dodo.py and configs/)" in ran.stderr
