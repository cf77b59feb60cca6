"""Projects, and servers that outlive a run, for tests with real processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from project_folder import ProjectFolder, Ran

from buildsys.worker import listing


@pytest.fixture
def lasting_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let servers outlive their run for this test; yields the folder that they are found in."""
    runtime = Path(tempfile.mkdtemp(prefix="bs-"))  # of pytest's folders the addresses would become too long
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("BUILDSYS_WORKER_IDLE", "60")
    yield runtime / "buildsys"
    listing.stop_servers(os.environ)
    shutil.rmtree(runtime)


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProjectFolder, Ran]:
    """A project with the model ``lin``, built; not to be touched."""
    project = ProjectFolder(tmp_path_factory.mktemp("built"))
    project.create()
    project.add_model("lin")
    return project, project.doit()


@pytest.fixture
def built(built_once: tuple[ProjectFolder, Ran], tmp_path: Path) -> ProjectFolder:
    """A copy of a built project."""
    project = ProjectFolder(tmp_path / "project")
    shutil.copytree(built_once[0].root, project.root, symlinks=True)
    return project


@pytest.fixture
def project(tmp_path: Path) -> ProjectFolder:
    """A project without models."""
    project = ProjectFolder(tmp_path / "project")
    project.root.mkdir()
    project.create()
    return project
