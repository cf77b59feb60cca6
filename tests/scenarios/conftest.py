"""Projects and shared worker servers for tests with real processes.

All projects of one kind are in one folder, one after the other: a server loads torch for one
project folder, and loading it again for every test would take most of the time of these tests.
"""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

import doit_server
import pytest
from project_folder import ProjectFolder, Ran
from ready_project import ReadyProject, TorchProject

from buildsys.workers import registry

pytest.register_assert_rewrite("remote_project")  # so that its assertions say what differs


@pytest.fixture(scope="session", autouse=True)
def _known_texts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Read our modules and the installed packages once for all projects."""
    with common_folder(tmp_path_factory, "texts") as file:
        if not file.exists():
            texts = doit_server.read_texts()
            for kind in (TorchProject, ReadyProject):
                project = kind(tmp_path_factory.mktemp("keys"), Path(os.devnull))
                project.create()
                project.add_model("a")
                texts |= doit_server.texts_of_keys(project.root, texts)
            file.write_text(json.dumps(texts), encoding="utf-8")
    doit_server.texts_file = file


@pytest.fixture
def shared_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let servers outlive their run during this test; yields their folder."""
    runtime = Path(tempfile.mkdtemp(prefix="bs-"))  # socket addresses in pytest's are too long
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("BUILDSYS_WORKER_IDLE", "600")
    yield runtime / "buildsys"
    registry.stop_servers(os.environ)
    shutil.rmtree(runtime)


@pytest.fixture(scope="session")
def runtime_folder() -> Iterator[Path]:
    """The socket folder of the worker servers of all projects."""
    folder = Path(tempfile.mkdtemp(prefix="bs-"))  # socket addresses in pytest's are too long
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def torch_place(
    tmp_path_factory: pytest.TempPathFactory, runtime_folder: Path
) -> Iterator[TorchProject]:
    """The common folder of projects with PyTorch models."""
    place = TorchProject(tmp_path_factory.mktemp("torch") / "project", runtime_folder)
    place.root.mkdir()
    yield place
    place.end()


@contextmanager
def common_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """Yield a folder of all processes of these tests, of one process after the other."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / name


@pytest.fixture(scope="session")
def built_once(
    torch_place: TorchProject, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ProjectFolder, Ran]:
    """A built project with the model ``lin``; only to be copied."""
    with common_folder(tmp_path_factory, "built") as folder:
        printed = folder / "ran.json"
        if not printed.exists():
            torch_place.clear()
            torch_place.create()
            torch_place.add_model("lin")
            ran = torch_place.doit()
            doit_server.store_texts(torch_place.root)
            shutil.copytree(torch_place.root, folder / "project", symlinks=True)
            printed.write_text(json.dumps(astuple(ran)))
        return ProjectFolder(folder / "project"), Ran(*json.loads(printed.read_text()))


@pytest.fixture
def empty_place(torch_place: TorchProject) -> Iterator[TorchProject]:
    """The common folder without files, for one test."""
    with torch_place.cleared():
        yield torch_place


@pytest.fixture
def built(built_once: tuple[ProjectFolder, Ran], empty_place: TorchProject) -> ProjectFolder:
    """A copy of a built project with the model ``lin``."""
    empty_place.copy_from(built_once[0].root)
    return empty_place


@pytest.fixture
def project(empty_place: TorchProject) -> ProjectFolder:
    """A project without models."""
    empty_place.create()
    return empty_place


@pytest.fixture(scope="session")
def ready_place(
    tmp_path_factory: pytest.TempPathFactory, runtime_folder: Path
) -> Iterator[ReadyProject]:
    """The common folder of ready projects."""
    place = ReadyProject(tmp_path_factory.mktemp("ready") / "project", runtime_folder)
    place.root.mkdir()
    yield place
    place.end()


@pytest.fixture(scope="session")
def ready_kept(ready_place: ReadyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built project with the network ``a``; only to be copied."""
    with common_folder(tmp_path_factory, "kept") as folder:
        if not folder.exists():
            ready_place.clear()
            ready_place.create()
            ready_place.add_model("a")
            assert ready_place.doit().code == 0
            doit_server.store_texts(ready_place.root)
            shutil.copytree(ready_place.root, folder)
    return folder


@pytest.fixture(scope="session")
def operator_table(
    ready_place: ReadyProject, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Ran]:
    """The folder with the table of ``buildsys ops``, only to be copied, and what it printed."""
    with common_folder(tmp_path_factory, "operators") as folder:
        printed = folder / "ran.json"
        if not printed.exists():
            ready_place.clear()
            ready_place.create()
            ran = ready_place.buildsys("ops", "asinh", "roll", "DeformConv")
            shutil.copytree(ready_place.root / ".buildsys/operators", folder / "table")
            printed.write_text(json.dumps(astuple(ran)))
        return folder / "table", Ran(*json.loads(printed.read_text()))


@pytest.fixture
def ready(ready_place: ReadyProject) -> Iterator[ReadyProject]:
    """A project with the network ``a``, not built."""
    with ready_place.cleared():
        ready_place.create()
        ready_place.add_model("a")
        yield ready_place


@pytest.fixture
def ready_built(ready_kept: Path, ready_place: ReadyProject) -> Iterator[ReadyProject]:
    """A copy of the built project with the network ``a``."""
    with ready_place.cleared():
        ready_place.copy_from(ready_kept)
        yield ready_place
