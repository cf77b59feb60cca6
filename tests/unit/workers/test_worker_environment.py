import os
import sys
from pathlib import Path

import pytest

import buildsys
from buildsys.workers.launch import server_environment, split_environment


@pytest.fixture
def rtx_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    library = tmp_path / "wheel" / "tensorrt_rtx_libs" / "libtensorrt_rtx.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    (library.parent / "__init__.py").write_text("raise ImportError('looked at, never imported')")
    monkeypatch.syspath_prepend(library.parent.parent)
    return library


def test_the_rtx_parser_finds_its_library(tmp_path: Path, rtx_wheel: Path) -> None:
    environment = server_environment(
        tmp_path / "workers", {"LD_LIBRARY_PATH": "/mine"}, path=sys.path
    )
    folder, mine = environment["LD_LIBRARY_PATH"].split(os.pathsep)
    assert mine == "/mine"
    assert (Path(folder) / "libtensorrt_rtx.so").resolve() == rtx_wheel


def test_an_unset_variable_leaves_no_empty_entry(tmp_path: Path, rtx_wheel: Path) -> None:
    assert "" not in server_environment(tmp_path, {}, path=sys.path)["LD_LIBRARY_PATH"].split(
        os.pathsep
    )


def test_the_server_finds_a_checkout(tmp_path: Path) -> None:
    environment = server_environment(tmp_path, {"PYTHONPATH": "/mine"})
    assert environment["PYTHONPATH"].split(os.pathsep)[-1] == "/mine"
    root = Path(buildsys.__file__).resolve().parent.parent
    assert (root.name == "site-packages") != (
        str(root) in environment["PYTHONPATH"].split(os.pathsep)
    )


def test_an_installed_package_is_not_put_before_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        buildsys, "__file__", str(tmp_path / "site-packages" / "buildsys" / "__init__.py")
    )
    assert "PYTHONPATH" not in server_environment(tmp_path, {})


def test_relative_entries_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entries = server_environment(
        tmp_path, {"PYTHONPATH": os.pathsep.join(("plugins", "", "/mine"))}
    )["PYTHONPATH"]
    assert entries.split(os.pathsep)[-2:] == [str(tmp_path / "plugins"), "/mine"]


def test_server_and_job_variables_are_complete() -> None:
    environment = {
        "PATH": "/bin",
        "TERM": "dumb",
        "BUILDSYS_STRICT": "1",
        "OMP_NUM_THREADS": "1",
        "_": "/bin/doit",
    }
    lasting, passing = split_environment(environment)
    assert {**lasting, **passing} == environment
    assert set(lasting) == {"PATH", "OMP_NUM_THREADS"}
