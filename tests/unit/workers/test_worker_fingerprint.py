import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from texts import Texts

from buildsys.system.toolchains import own_interpreter
from buildsys.workers import launch as module
from buildsys.workers.job import BARE, ServerKind
from buildsys.workers.launch import fingerprint


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder of modules."""
    folder = tmp_path / "lib"
    for name in ("single.py", "package/__init__.py", "some-1.0.dist-info/RECORD", "notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.fixture
def mark(tmp_path: Path, library: Path) -> Callable[..., str]:
    (tmp_path / "workers").mkdir()

    def mark(kind: ServerKind = BARE, python: str = sys.executable, **variables: str) -> str:
        environment = {"PYTHONPATH": str(library), **variables}
        return fingerprint(kind, python, own_interpreter(), environment, tmp_path / "workers")

    return mark


def test_unrelated_files_keep_the_fingerprint(mark: Callable[..., str], library: Path) -> None:
    first = mark()
    (library / "notes.txt").write_text("more")
    (library / "data").mkdir()
    (library / "__pycache__").mkdir()
    assert mark() == first
    assert len(first) == 64


@pytest.mark.parametrize(
    "change",
    [
        lambda library: (library / "single.py").write_text("x = 1"),
        lambda library: (library / "package/__init__.py").write_text("x = 1"),
        lambda library: (library / "some-1.0.dist-info").rename(library / "some-1.1.dist-info"),
        lambda library: (library / "some-1.0.dist-info/RECORD").write_text("file"),
        lambda library: (library / "single.py").unlink(),
        lambda library: (library / "added.pth").write_text(""),
        lambda library: os.utime(library / "single.py", ns=(1, 1)),
    ],
)
def test_importable_modules_change_the_fingerprint(
    mark: Callable[..., str], library: Path, change: Callable[[Path], object]
) -> None:
    first = mark()
    change(library)
    assert mark() != first


def test_start_conditions_change_the_fingerprint(mark: Callable[..., str]) -> None:
    given = [
        mark(),
        mark(OMP_NUM_THREADS="1"),
        mark(OMP_NUM_THREADS="2"),
        mark(kind=ServerKind("bare", preload=("json",))),
        mark(kind=ServerKind("bare", without=("json",))),
        mark(python="/bin/sh"),
    ]
    assert len(set(given)) == len(given)


def test_inherited_state_changes_the_fingerprint(
    mark: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = mark()
    mask = os.umask(0o077)
    try:
        assert mark() != first
    finally:
        os.umask(mask)
    assert mark() == first


def test_our_own_code_changes_the_fingerprint(
    mark: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = mark()
    (tmp_path / "code.py").write_text("")
    monkeypatch.setattr(module, "server_modules", lambda: [str(tmp_path / "code.py")])
    second = mark()
    (tmp_path / "code.py").write_text("x = 1")
    assert len({first, second, mark()}) == 3


def test_an_edited_module_of_a_preloaded_library_changes_the_fingerprint(
    library: Path, tmp_path: Path
) -> None:
    (library / "package/deep.py").write_text("x = 1")
    record = "package/__init__.py,sha256=a,0\npackage/deep.py,sha256=b,5\n"
    (library / "some-1.0.dist-info").rename(library / "package-1.0.dist-info")
    (library / "package-1.0.dist-info/RECORD").write_text(record)
    (tmp_path / "workers").mkdir()

    def mark(*preload: str) -> str:
        kind, environment = ServerKind("bare", preload=preload), {"PYTHONPATH": str(library)}
        interpreter, folder = own_interpreter(), tmp_path / "workers"
        return fingerprint(kind, sys.executable, interpreter, environment, folder, Texts())

    first = mark("package.deep"), mark()
    (library / "package/deep.py").write_text("x = 2")
    assert mark("package.deep") != first[0]
    assert mark() == first[1]
