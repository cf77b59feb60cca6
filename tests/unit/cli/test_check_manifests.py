"""The check of single manifests before a commit."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from buildsys.cli.check_manifests import main
from buildsys.project.load import load_project
from buildsys.system.files import SETTLE_NS
from buildsys.system.processes import package_environment

MANIFEST = "source: {torchvision: resnet18}\ninputs: {x: {shape: [1, 3, 32, 32]}}\n"
Output = pytest.CaptureFixture[str]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the manifests a and b; b is broken."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "configs/models"
    folder.mkdir(parents=True)
    (tmp_path / "dodo.py").write_text("import buildsys")
    (folder / "a.yaml").write_text(f"model: a\n{MANIFEST}")
    (folder / "b.yaml").write_text(f"modle: b\n{MANIFEST}")
    return folder


def check(capsys: Output, *names: str) -> tuple[int, list[str]]:
    code = main(names)
    return code, capsys.readouterr().err.splitlines()


def test_only_the_named_manifests_are_checked(
    models: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(capsys, "configs/models/a.yaml") == (0, [])
    error = "configs/models/b.yaml:1:1: modle: unknown field; did you mean model?"
    assert check(capsys, "configs/models/b.yaml", "configs/models/a.yaml") == (3, [error])
    assert check(capsys, str(models / "b.yaml")) == (3, [error])
    assert check(capsys) == (3, [error])
    monkeypatch.chdir(models)
    assert check(capsys, "b.yaml") == (3, [error.removeprefix("configs/models/")])


def test_a_shared_file_checks_all_that_may_use_it(models: Path, capsys: Output) -> None:
    (models / "_base.yaml").write_text("exprot: {}\n")
    (models / "b.yaml").write_text(f"model: b\nextends: _base.yaml\n{MANIFEST}")
    assert check(capsys, "configs/models/a.yaml") == (0, [])
    code, errors = check(capsys, "configs/models/_base.yaml")
    assert (code, len(errors)) == (3, 1)
    assert errors[0].startswith("configs/models/_base.yaml:1:1: exprot: unknown field")
    (models.parent / "project.yaml").write_text("defautls: {}\n")
    code, errors = check(capsys, "configs/models/a.yaml")
    assert (code, len(errors)) == (3, 1), "its defaults are part of every manifest"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("configs/models/x.yaml", "ERROR: configs/models/x.yaml is not a manifest; manifests"),
        ("dodo.py", "ERROR: dodo.py is not a manifest; manifests are in "),
        (
            "/etc/hostname",
            "/etc/hostname is not in a project (a folder with dodo.py or buildsys.toml of",
        ),
    ],
)
def test_another_file_is_one_sentence(
    models: Path, capsys: Output, name: str, message: str
) -> None:
    code, errors = check(capsys, name)
    assert (code, len(errors)) == (3, 1)
    assert message in errors[0]


def test_a_manifest_in_the_cache_needs_neither_pydantic_nor_yaml(models: Path) -> None:
    (models / "b.yaml").unlink()
    load_settled()
    assert not imported_by_check() & {"pydantic", "yaml", "doit"}


def load_settled() -> None:
    """Load the project into the cache once the stamps of its files can be trusted."""
    time.sleep(2 * SETTLE_NS / 1e9)
    load_project(Path.cwd())


def imported_by_check() -> set[str]:
    """Return the modules that a new process has after a check of a.yaml."""
    code = (
        "import sys; from buildsys.cli.check_manifests import main; "
        "assert main(['configs/models/a.yaml']) == 0; print(*sys.modules)"
    )
    # the package under test, whichever is installed
    environment = package_environment()
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stderr == ""
    return set(done.stdout.split())
