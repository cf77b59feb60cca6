"""[tool.buildsys] in pyproject.toml, and buildsys.toml."""

from pathlib import Path

import pytest

from buildsys.cli import command
from buildsys.cli.command import find_project, is_project
from buildsys.cli.main import run
from buildsys.errors import ManifestError
from buildsys.project.load import empty_project, load_project

NET = "model: net\nsource: {onnx: net.onnx}\ninputs: {x: {shape: [1]}}\nengines: []\n"
SETTINGS = 'configs = "ml/my configs"\nbuild = "ml/öut"\ncode = ["src", "../shared"]\n'
PYPROJECT = "[project]\r\nname = 'x'\r\n\r\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "a b"
    for folder in ("src", "../shared", "ml/my configs/models"):
        (root / folder).mkdir(parents=True)
    (root / "file").touch()
    (root / "net.onnx").touch()
    (root / "ml/my configs/models/net.yaml").write_text(NET)
    return root


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", f"{PYPROJECT}[tool.buildsys]\n{SETTINGS}"),
        ("pyproject.toml", f"[tool . 'buildsys']\n{SETTINGS}[tool.doit]\nloader = 'x'\n"),
        ("pyproject.toml", f"[tool]\nbuildsys = {{{SETTINGS.strip().replace(chr(10), ', ')}}}"),
        ("pyproject.toml", "tool.buildsys." + SETTINGS.strip().replace("\n", "\ntool.buildsys.")),
        ("buildsys.toml", SETTINGS.replace("\n", "\r\n")),
        ("buildsys.toml", f"\ufeff# ours\n[tool.buildsys]\n{SETTINGS}"),
    ],
)
def test_settings_name_the_folders(
    root: Path, file: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / file).write_bytes(text.encode())
    assert find_project(root / "ml") == root
    project = load_project(root)
    assert list(project.models) == ["net"]
    assert project.configs == root / "ml/my configs"
    assert (project.build, project.code) == (root / "ml/öut", ("src", "../shared"))
    monkeypatch.setenv("BUILDSYS_BUILD", "elsewhere")
    monkeypatch.setenv("BUILDSYS_CONFIGS", "others")
    project = empty_project(root)
    assert (project.configs, project.build) == (root / "others", root / "elsewhere")
    monkeypatch.setenv("BUILDSYS_BUILD", "")
    assert empty_project(root).build == root / "ml/öut"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", "[tool.buildsys]\n"),
        ("buildsys.toml", ""),
        ("dodo.py", "from buildsys.dodo import task_targets\n"),
    ],
)
def test_a_project_needs_no_setting(root: Path, file: str, text: str) -> None:
    (root / file).write_text(text)
    assert is_project(root)
    project = empty_project(root)
    assert (project.configs, project.build) == (root / "configs", root / "build")
    assert project.code == ()


@pytest.mark.parametrize(
    "text",
    [
        "[project]\nname = 'buildsys'\n",
        "[tool.doit]\nloader = 'buildsys'\n",
        "[tool]\nother = {buildsys = 1}\n",
        "# [tool.buildsys]\n",
        "[project\n",
        "\xff",
    ],
)
def test_a_pyproject_of_others_is_no_project(root: Path, text: str) -> None:
    (root / "pyproject.toml").write_bytes(text.encode("latin-1"))
    assert not is_project(root)


def test_each_package_of_a_repository_may_be_a_project(root: Path) -> None:
    (root / "pyproject.toml").write_text("[tool.buildsys]\nconfigs = 'ml/my configs'\n")
    package = root / "packages/vision"
    (package / "net/configs/models").mkdir(parents=True)
    (package / "pyproject.toml").write_text("[tool.buildsys]\nconfigs = 'net/configs'\n")
    assert find_project(package / "net/configs") == package
    assert find_project(root / "packages") == root
    assert not load_project(package).models


ERRORS = {
    "[tool.buildsys]\nconfig = 'x'": "2: config: there is no such setting; did you mean configs?",
    "[tool.buildsys]\n\nzzz = 'x'": "3: zzz: there is no such setting; settings: configs, build, "
    "code",
    "configs = 'x'\n[tool.buildsys]\nconfigs = 5": "3: configs: expected the name of a folder; "
    'such as "configs"',
    "[tool.buildsys]\nconfigs = 'file'": "2: configs: file is not a folder; name another one",
    "[tool.buildsys]\nbuild = ''": '2: build: expected the name of a folder; such as "build"',
    "[tool.buildsys]\nbuild = '.'": "2: build: . has files that are no outputs; name a folder of "
    "its own",
    "[tool.buildsys]\nconfigs = 'ml/a'\nbuild = 'ml'": "3: build: ml has files that are no "
    "outputs; name a folder of its own",
    "[tool.buildsys]\ncode = 'src'": '2: code: expected a list of folders; such as ["src"]',
    "[tool.buildsys]\ncode = [\n'src',\n'scr']": "2: code: there is no folder scr; correct the "
    "list",
    "[tool]\nbuildsys = 3": "2: buildsys: expected a table of settings; write [tool.buildsys]",
    "[tool.buildsys]\nconfigs = x": "2: Invalid value; correct the TOML",
    "[tool.buildsys]\nconfigs": "2: ",
}


@pytest.mark.parametrize("text", ERRORS)
def test_a_wrong_setting_is_one_sentence_with_its_line(
    root: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "pyproject.toml").write_text(text)
    with pytest.raises(ManifestError) as caught:
        empty_project(root)
    assert str(caught.value).startswith(f"pyproject.toml:{ERRORS[text]}")
    monkeypatch.setattr(command, "_started_in", [])
    monkeypatch.chdir(root / "ml")
    assert run(["list"]) == 3
    assert capsys.readouterr().err == f"in {root}\nERROR: {caught.value}\n"


def test_two_files_with_settings_are_refused(root: Path) -> None:
    (root / "pyproject.toml").write_text("\n[tool.buildsys]\n")
    (root / "buildsys.toml").write_text(SETTINGS)
    with pytest.raises(ManifestError) as caught:
        empty_project(root)
    sentence = "pyproject.toml:2: buildsys.toml has settings, too; keep one of the two"
    assert str(caught.value) == sentence


def test_an_unreadable_file_stops_only_a_project(root: Path) -> None:
    (root / "pyproject.toml").symlink_to("pyproject.toml")  # a loop
    assert not is_project(root)
    (root / "dodo.py").write_text("from buildsys.dodo import task_targets\n")
    with pytest.raises(ManifestError, match=r"^pyproject.toml: cannot read the file: too many"):
        empty_project(root)
