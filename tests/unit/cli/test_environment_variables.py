"""Environment variables: unknown names and malformed values are refused before anything runs."""

import re
from pathlib import Path

import pytest
from doit.exceptions import InvalidDodoFile

from buildsys.cli import tasks
from buildsys.cli.environment_variables import FORMS, check_variables
from buildsys.cli.main import run_command
from buildsys.errors import UsageError

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/commands.md").read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "configs/models").mkdir(parents=True)
    (tmp_path / "configs/project.yaml").write_text("toolchains: {trt-86: {python: envs/p}}\n")
    (tmp_path / "file").touch()
    (tmp_path / "dodo.py").write_text("import buildsys")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BUILDSYS_STRICT", "1"),
        ("BUILDSYS_LABELS", "trt86, lab-1,"),
        ("BUILDSYS_WORKER_IDLE", "10min"),
        ("BUILDSYS_STORE", "not/yet/there"),
        ("BUILDSYS_REMOTE", ""),
        ("BUILDSYS_REMOTE", "simplecache::sftp://host/place"),
        ("BUILDSYS_TOOLCHAIN_TRT_86", "/anything"),
        ("BUILDSYS_TEST_TOOLCHAIN", "of the tests"),
        ("OTHER_STRICTKT", "of others"),
    ],
)
def test_well_formed_values_are_accepted(project: Path, name: str, value: str) -> None:
    check_variables(project, {name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BUILDSYS_STRICT", "maybe", "BUILDSYS_STRICT=maybe is neither 0 nor 1"),
        ("BUILDSYS_WORKER_IDLE", "abc", "BUILDSYS_WORKER_IDLE: expected a duration such as"),
        ("BUILDSYS_BUILD", "file", "BUILDSYS_BUILD=file is not a folder"),
        ("BUILDSYS_REMOTE", "file", "BUILDSYS_REMOTE=file is not a folder"),
        ("BUILDSYS_REMOTE", "s3:/bucket", "BUILDSYS_REMOTE is not a URL"),
        ("BUILDSYS_STRICKT", "1", "BUILDSYS_STRICKT; nearest: BUILDSYS_STRICT"),
        ("BUILDSYS_WORKERS_IDLE", "1", "BUILDSYS_WORKERS_IDLE; nearest: BUILDSYS_WORKER_IDLE"),
        ("BUILDSYS_TOOLCHAIN_TRT68", "x", "TRT68; nearest: BUILDSYS_TOOLCHAIN_TRT_86"),
        ("BUILDSYS_QUUX", "1", "BUILDSYS_QUUX; known: BUILDSYS_BUILD, BUILDSYS_CONFIGS"),
    ],
)
def test_others_are_refused_with_the_nearest_name(
    project: Path, name: str, value: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_variables(project, {"PATH": "", name: value})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_command_refuses_them(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDSYS_STRICKT", "1")
    with pytest.raises(InvalidDodoFile, match="BUILDSYS_STRICKT; nearest: BUILDSYS_STRICT"):
        tasks.load(project)
    monkeypatch.chdir(project)
    with pytest.raises(UsageError, match="BUILDSYS_STRICKT; nearest: BUILDSYS_STRICT"):
        run_command("schema", [])
    assert not (project / ".buildsys").exists()
    assert not (project / "configs/schema").exists()


def test_a_broken_project_file_is_left_to_the_load(project: Path) -> None:
    for text in ("toolchains: [1]\n", "toolchains: {a: 1}\n", "toolchains: {{\n"):
        (project / "configs/project.yaml").write_text(text)
        with pytest.raises(UsageError, match="there is no environment variable"):
            check_variables(project, {"BUILDSYS_TOOLCHAIN_A": "x"})


def test_every_variable_of_the_code_is_documented_with_its_form() -> None:
    rows = re.findall(r"^\| `(BUILDSYS_\w+)` \| (.+?) \| .+? \|$", PAGE, re.MULTILINE)
    assert rows == [*FORMS.items()]
    code = "".join(path.read_text("utf-8") for path in (ROOT / "buildsys").rglob("*.py"))
    used = set(re.findall(r"\bBUILDSYS_[A-Z]+(?:_[A-Z]+)*\b", code))
    partial = {"BUILDSYS_GPU", "BUILDSYS_KILL", "BUILDSYS_LONG_TESTS", "BUILDSYS_TEST"}
    assert used - partial == {*FORMS} | {"BUILDSYS_TOOLCHAIN"} & used
