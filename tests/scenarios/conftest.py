"""Projects and shared worker servers for tests with real processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from project_folder import ProjectFolder, Ran
from ready_project import ReadyProject

from buildsys.workers.client import status


@pytest.fixture
def shared_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let servers outlive their run during this test; yields their folder."""
    runtime = Path(tempfile.mkdtemp(prefix="bs-"))  # socket addresses in pytest's are too long
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("BUILDSYS_WORKER_IDLE", "60")
    yield runtime / "buildsys"
    status.stop_servers(os.environ)
    shutil.rmtree(runtime)


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProjectFolder, Ran]:
    """A built project with the model ``lin``; read-only."""
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


@pytest.fixture(scope="session")
def runtime_folder() -> Iterator[Path]:
    """The socket folder of ready projects' worker servers."""
    folder = Path(tempfile.mkdtemp(prefix="bs-"))  # socket addresses in pytest's are too long
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def ready_place(
    tmp_path_factory: pytest.TempPathFactory, runtime_folder: Path
) -> Iterator[ReadyProject]:
    """The common folder of ready projects, so that they share a worker server."""
    place = ReadyProject(tmp_path_factory.mktemp("ready") / "project", runtime_folder)
    place.root.mkdir()
    yield place
    place.end()


@pytest.fixture(scope="session")
def ready_kept(ready_place: ReadyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built project with the network ``a``; only to be copied."""
    kept = tmp_path_factory.mktemp("kept") / "project"
    ready_place.clear()
    ready_place.create()
    ready_place.add_model("a")
    assert ready_place.doit().code == 0
    shutil.copytree(ready_place.root, kept)
    return kept


@pytest.fixture
def ready(ready_place: ReadyProject) -> Iterator[ReadyProject]:
    """A project with the network ``a``, not built."""
    ready_place.clear()
    ready_place.create()
    ready_place.add_model("a")
    yield ready_place
    ready_place.finish_runs()


@pytest.fixture
def ready_built(ready_kept: Path, ready_place: ReadyProject) -> Iterator[ReadyProject]:
    """A copy of the built project with the network ``a``."""
    ready_place.clear()
    shutil.copytree(
        ready_kept, ready_place.root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("workers")
    )
    yield ready_place
    ready_place.finish_runs()
