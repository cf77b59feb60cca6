"""Projects of a small PyTorch model in one place, served by the same worker servers.

A server loads torch for one project folder; loading it again for every test would take most of the
time of these tests.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from project_folder import ProjectFolder, Ran
from ready_project import ReadyProject


class TorchProject(ReadyProject):
    """A place for projects as ``ProjectFolder`` makes them."""

    create = ProjectFolder.create
    add_model = ProjectFolder.add_model


@pytest.fixture(scope="session")
def torch_place(
    tmp_path_factory: pytest.TempPathFactory, runtime_folder: Path
) -> Iterator[TorchProject]:
    """The place of one project after the other."""
    place = TorchProject(tmp_path_factory.mktemp("torch") / "project", runtime_folder)
    place.root.mkdir()
    yield place
    place.end()


@pytest.fixture(scope="session")
def built_once(
    torch_place: TorchProject, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ProjectFolder, Ran]:
    """A project with the model ``lin``, built; only to be copied."""
    torch_place.clear()
    torch_place.create()
    torch_place.add_model("lin")
    ran = torch_place.doit()
    kept = ProjectFolder(tmp_path_factory.mktemp("built") / "project")
    shutil.copytree(torch_place.root, kept.root, symlinks=True)
    return kept, ran


@pytest.fixture
def empty_place(torch_place: TorchProject) -> Iterator[TorchProject]:
    """The empty place, for one test."""
    torch_place.clear()
    environment = dict(torch_place.environment)
    yield torch_place
    torch_place.environment = environment
    torch_place.finish_runs()


@pytest.fixture
def built(built_once: tuple[ProjectFolder, Ran], empty_place: TorchProject) -> ProjectFolder:
    """A copy of a built project."""
    shutil.copytree(
        built_once[0].root,
        empty_place.root,
        symlinks=True,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("workers"),
    )
    return empty_place


@pytest.fixture
def project(empty_place: TorchProject) -> ProjectFolder:
    """A project without models."""
    empty_place.create()
    return empty_place
