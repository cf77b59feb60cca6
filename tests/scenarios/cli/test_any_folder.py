"""``buildsys`` and ``buildsys build`` find the project of the current folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doit.doit_cmd import DoitConfig
from project_folder import REPOSITORY, TIMEOUT_S

DOIT_ALONE = "def task_mine(): return {'actions': ['echo mine']}\n"


@pytest.fixture(scope="module")
def new_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of ``buildsys init``; only to be copied."""
    root = tmp_path_factory.mktemp("new")
    assert run(root, "buildsys", "init").returncode == 0
    (root / "net.onnx").touch()
    (root / "configs/models/resnet18.yaml").write_text(
        "model: net\nsource: {onnx: net.onnx}\ninputs: {x: {shape: [1]}}\n"
    )
    return root


@pytest.fixture
def project(new_project: Path, tmp_path: Path) -> Path:
    """A new project; with entry points, as an older installation may have none."""
    root = shutil.copytree(new_project, tmp_path / "project")
    installed = tmp_path / "installed/buildsys-0.1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: buildsys\nVersion: 0.1.0\n")
    declared = DoitConfig().toml.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lines = [
        line
        for group, points in declared["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {place}" for name, place in points.items()))
    ]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    return root


def run(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    installed = folder
    while installed != installed.parent and not (installed / "installed").is_dir():
        installed = installed.parent
    path = f"{installed / 'installed'}:{REPOSITORY}"
    return subprocess.run(
        [sys.executable, "-m", program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_every_command_in_a_subfolder(project: Path) -> None:
    for program, arguments, printed in (
        ("buildsys", ("plan", "build:net"), "export:net"),
        ("buildsys", ("list", "nett"), ""),
    ):
        ran = run(project / "configs/models", program, *arguments)
        assert ran.returncode == (0 if printed else 3), ran.stderr
        assert ran.stderr.startswith(f"in {project}\n")
        assert printed in ran.stdout
    assert "there is no target 'nett'; nearest: net" in ran.stderr


def test_doit_in_a_project_without_a_table_of_commands(project: Path) -> None:
    for arguments, printed in ((("-f", "dodo.py", "list"), "build:net"),):
        ran = run(project, "doit", *arguments)
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
        assert printed in ran.stdout


def test_other_uses_of_doit_are_left_alone(project: Path) -> None:
    (project / "docs").mkdir()
    (project / "docs/dodo.py").write_text(DOIT_ALONE)
    for folder in (project / "docs", project.parent):
        (folder / "dodo.py").write_text(DOIT_ALONE)
        for arguments, printed in (((), ".  mine"), (("help",), "automation")):
            ran = run(folder, "doit", *arguments)
            assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
            assert printed in ran.stdout
