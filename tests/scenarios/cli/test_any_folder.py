"""``buildsys`` and ``buildsys build`` find the project of the current folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doit.doit_cmd import DoitConfig
from project_folder import REPOSITORY, TIMEOUT_S

DOIT_ALONE = "def task_mine(): return {'actions': ['echo mine']}\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of ``buildsys init`` with entry points, as an older installation may have none."""
    root = tmp_path / "project"
    root.mkdir()
    assert run(root, "buildsys", "init").returncode == 0
    (root / "net.onnx").touch()
    (root / "configs/models/resnet18.yaml").write_text(
        "model: net\nsource: {onnx: net.onnx}\ninputs: {x: {shape: [1]}}\n"
    )
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


def test_the_project_of_a_folder_is_used_and_other_uses_of_doit_are_left_alone(
    project: Path,
) -> None:
    ran = run(project / "configs/models", "buildsys", "plan", "build:net")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith(f"in {project}\n")
    assert "export:net" in ran.stdout
    ran = run(project, "doit", "-f", "dodo.py", "list")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "build:net" in ran.stdout
    (project / "docs").mkdir()
    for folder in (project / "docs", project.parent):
        (folder / "dodo.py").write_text(DOIT_ALONE)
        ran = run(folder, "doit")
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
        assert ".  mine" in ran.stdout
