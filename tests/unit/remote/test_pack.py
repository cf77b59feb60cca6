import json
import os
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_project import EXPORT, actions

from buildsys.errors import StageError
from buildsys.execution.build_cache import store_folder
from buildsys.project.load import Project, empty_project
from buildsys.remote.pack import (
    named_files,
    pack_project,
    put_earlier_builds,
    unpack_earlier_builds,
    unpack_project,
)
from buildsys.store.ledger import ActionRecord, Ledger, OutputFile
from buildsys.store.object_store import Store
from buildsys.store.shared_cache import Depot
from buildsys.store.state_db import StateDb


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "project"
    for name in (
        "configs/models/net.yaml",
        "plugins/net.py",
        "build/net/engine.onnx",
        "data/x.npy",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"content of {name}\n")
    for name in ("plugins/__pycache__/net.pyc", "env/pyvenv.cfg", ".buildsys/state.db"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("left out")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "plugins/link.py").symlink_to("net.py")
    (root / "plugins/folder").symlink_to("../configs")
    return empty_project(root)


@pytest.fixture
def depot(tmp_path: Path) -> Depot:
    return Depot(str(tmp_path / "store"))


def git(project: Project, *arguments: str) -> None:
    command = ["git", "-C", str(project.root), "-c", "user.name=t", "-c", "user.email=t@e.org"]
    subprocess.run([*command, *arguments], check=True, capture_output=True)


def tree(root: Path) -> dict[str, tuple[bytes | str, bool]]:
    """Return the content or the link, and the right to execute, of all files."""
    return {
        path.relative_to(root).as_posix(): (str(path.readlink()), False)
        if path.is_symlink()
        else (path.read_bytes(), os.access(path, os.X_OK))
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def unpacked(depot: Depot, pack: OutputFile, folder: Path) -> dict[str, tuple[bytes | str, bool]]:
    unpack_project(depot, pack, folder)
    return tree(folder)


def test_all_files_but_outputs_and_caches_travel_without_git(
    project: Project, depot: Depot, tmp_path: Path
) -> None:
    expected = tree(project.root)
    for name in ("build/net/engine.onnx", "plugins/__pycache__/net.pyc", "env/pyvenv.cfg"):
        del expected[name]
    del expected[".buildsys/state.db"]
    assert unpacked(depot, pack_project(depot, project), tmp_path / "there") == expected


def test_ignored_files_stay_here_unless_a_manifest_names_them(
    project: Project, depot: Depot, tmp_path: Path
) -> None:
    git(project, "init", "-q")
    (project.root / ".gitignore").write_text("data\nenv\n*.pyc\n.buildsys\n")
    git(project, "add", ".")
    git(project, "commit", "-qm", "all")
    (project.root / "new.py").touch()  # not tracked yet
    (project.root / "run.sh").unlink()  # still in the index
    first = unpacked(depot, pack_project(depot, project), tmp_path / "first")
    assert "new.py" in first
    assert not first.keys() & {"data/x.npy", "run.sh", "build/net/engine.onnx", "env/pyvenv.cfg"}
    named = pack_project(depot, project, ["data/", "missing.npy"])
    second = unpacked(depot, named, tmp_path / "second")
    assert second.keys() - first.keys() == {"data/x.npy"}
    matched = unpacked(depot, pack_project(depot, project, ["d*/*.npy"]), tmp_path / "third")
    assert matched.keys() == second.keys()


def test_code_travels_unless_python_finds_it_on_the_other_machine(project: Project) -> None:
    (project.root / "src").mkdir()
    (project.root / "src/own.py").touch()
    action = replace(
        actions()[EXPORT],
        sources=("plugins/net.py", "own:", "torchvision.models:", "data/x.npy"),
        weights={"w.pth": None},
        reads=("$HOME", "labels.txt"),
    )
    files = {"plugins/net.py", "src/own.py", "data/x.npy", "w.pth", "labels.txt"}
    assert named_files(project, [action]) == files
    project = replace(project, code=("src", "../shared"))
    assert named_files(project, [action]) == files | {"../shared"}


@pytest.mark.parametrize("name", ["../project2/x", "/etc/hosts", "data/out"])
def test_named_files_outside_the_project_are_refused(
    project: Project, depot: Depot, name: str
) -> None:
    (project.root / "data/out").symlink_to("/etc")
    with pytest.raises(StageError) as caught:
        pack_project(depot, project, [name])
    assert str(caught.value) == (
        f"{name} is outside of the project, and a remote job gets nothing else; copy it into the"
        " project, or build on this machine"
    )


def test_a_damaged_object_is_refused(project: Project, depot: Depot, tmp_path: Path) -> None:
    pack = pack_project(depot, project)
    for path in (tmp_path / "store/objects").rglob("*"):
        if path.is_file() and path.read_bytes() == b"#!/bin/sh\n":
            path.write_text("#!/bin/no\n")
    with pytest.raises(StageError, match=r"objects/../[0-9a-f]{64} of the shared cache .* damaged"):
        unpack_project(depot, pack, tmp_path / "there")


FILE = ["0" * 64, 1, False]
DAMAGED: dict[str, object] = {
    "not JSON": b"{",
    "deep": b"[" * 100_000,
    "a list": [],
    "no links": {"files": {}},
    "no digest": {"files": {"a": ["x", 1, False]}, "links": {}},
    "outside": {"files": {"../a": FILE}, "links": {}},
    "absolute": {"files": {}, "links": {"/a": "b"}},
    "file in a file": {"files": {"a": FILE, "a/b": FILE}, "links": {}},
    "file through a link": {"files": {"a/b": FILE}, "links": {"a": "FOREIGN"}},
    "link through a link": {"files": {}, "links": {"a": "FOREIGN", "a/b": "/etc/passwd"}},
    "huge integer": b'{"files": {"a": ["", ' + b"9" * 5000 + b', false]}, "links": {}}',
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_pack_writes_nothing(depot: Depot, tmp_path: Path, damage: str) -> None:
    content, foreign = DAMAGED[damage], tmp_path / "foreign"
    foreign.mkdir()
    if not isinstance(content, bytes):
        content = json.dumps(content).replace("FOREIGN", str(foreign)).encode()
    with pytest.raises(StageError, match="is not what a build packs"):
        unpack_project(depot, depot.put_bytes(content), tmp_path / "there")
    assert not list(foreign.iterdir())
    assert not (tmp_path / "there").exists()


def test_a_large_object_is_not_read_into_memory(depot: Depot) -> None:
    file = depot.put_bytes(b"12345678")
    assert depot.content(file, 8) == b"12345678"
    with pytest.raises(StageError, match="has 8 bytes, more than 7"):
        depot.content(file, 7)


def test_a_store_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StageError, match=r"^the shared cache .* could not store an object: "):
        Depot(str(tmp_path / "file")).put_bytes(b"x")
    with pytest.raises(StageError, match="write a folder, or a URL"):
        Depot("s33://bucket/folder")


def test_earlier_builds_of_gates_travel_with_their_engines(
    project: Project, depot: Depot, tmp_path: Path
) -> None:
    (project.state / "state.db").unlink()
    assert put_earlier_builds(depot, project, ["gate:net:ort"]) is None
    store = Store(store_folder(project.state))
    engine = depot.put_bytes(b"an engine")
    store.add(engine, [b"an engine"])
    parts = {"input:net/engine.onnx": engine.digest, "baseline:engine": "none"}
    figures = {"figures": {"p50_ms": 1.5, "ratio": float("inf")}}
    gate = ActionRecord("gate:net:ort", "k", parts, {}, "passed", "2026-01-02T03:04:05Z", 1.0)
    first, second = gate, replace(gate, key="l", figures=figures)
    with closing(StateDb(project.state / "state.db")) as db:
        for record in (first, second):
            Ledger(db).add(record)
    pack = put_earlier_builds(depot, project, ["gate:net:ort"])
    assert pack is not None
    there = empty_project(tmp_path / "there")
    unpack_earlier_builds(depot, pack, there)
    with closing(StateDb(there.state / "state.db")) as db:
        assert Ledger(db).records("gate:net:ort") == [second, first]
    assert Store(store_folder(there.state)).holds(engine)
