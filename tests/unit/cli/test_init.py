"""buildsys init: a new project, or a refusal without a trace."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from buildsys.cli.command import is_project
from buildsys.cli.commands import init as command
from buildsys.cli.main import run
from buildsys.project.json_schema import schema_texts
from buildsys.project.load import load_project
from buildsys.project.plan import ProjectPlan
from buildsys.system import programs

REPOSITORY = Path(__file__).parents[3]
Init = Callable[..., tuple[int, str]]


@pytest.fixture
def init(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Init:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str]:
        code = run(["init", *arguments])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return all files with their content, and folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("gpu", ["none", "RTX"])
def test_a_new_project_has_one_model_that_can_be_planned(
    init: Init, tmp_path: Path, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "gpu_facts", lambda: {"gpu.name": gpu})
    monkeypatch.setattr(programs, "tool_versions", lambda names, _: dict.fromkeys(names, "9"))
    code, out = init()
    assert code == 0
    assert out.splitlines()[-1] == "next: buildsys build resnet18"
    project = load_project(tmp_path)
    assert list(project.models) == ["resnet18"]
    plan = ProjectPlan(project.models)
    engines = [name.partition("resnet18:")[2] for name in plan if name.startswith("engine:")]
    assert engines == ["ort-cpu", "rtx-fp16", "trt-fp32", "trt-fp16"][: 1 if gpu == "none" else 4]
    written = {name for name, content in tree(tmp_path).items() if content is not None}
    listed = {line.removeprefix("writes ") for line in out.splitlines()[:-1]}
    assert listed == written - {name for name in written if name.startswith(".buildsys")}
    for name, text in schema_texts().items():
        assert (tmp_path / "configs/schema" / name).read_text() == text


@pytest.mark.parametrize(
    ("template", "file"),
    [
        ("dodo.template", "dodo.py"),
        ("engines.yaml", "configs/engines.yaml"),
        ("github-nightly.yml", "docs/ci/github-nightly.yml"),
        ("github-pull-request.yml", "docs/ci/github-pull-request.yml"),
        ("gitlab-ci.yml", "docs/ci/gitlab-ci.yml"),
    ],
)
def test_templates_are_the_files_of_this_repository(template: str, file: str) -> None:
    folder = Path(command.__file__).parents[1] / "templates"
    assert (folder / template).read_bytes() == (REPOSITORY / file).read_bytes()


def test_files_of_others_stay(init: Init, tmp_path: Path) -> None:
    others = {
        ".gitignore": b"/build/\n*.log",
        ".vscode/settings.json": b"{}",
        "pyproject.toml": b"[project]\nname = 'x'\n",
        "configs/train.yaml": b"lr: 1",
        "plugins/old.py": b"",
    }
    for name, content in others.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert init()[0] == 0
    assert (tmp_path / ".gitignore").read_bytes() == b"/build/\n*.log\n/.buildsys/\n__pycache__/\n"
    for name, content in list(others.items())[1:]:
        assert (tmp_path / name).read_bytes() == content


def test_a_recipe_is_written_on_request_or_added_later(init: Init, tmp_path: Path) -> None:
    assert init("--ci", "gitlab")[0] == 0
    assert (tmp_path / ".gitlab-ci.yml").is_file()
    code, out = init("--ci", "github")
    assert (code, out.splitlines()) == (
        0,
        [
            "writes .github/workflows/nightly.yml",
            "writes .github/workflows/pull-request.yml",
            "next: buildsys doctor",
        ],
    )
    (tmp_path / ".github/workflows/nightly.yml").write_text("name: mine")
    code, out = init("--ci", "github")
    assert code == 3
    assert "these files exist: .github/workflows/nightly.yml" in out


@pytest.mark.parametrize(
    ("files", "arguments", "sentence"),
    [
        ({"dodo.py": "from buildsys.cli.tasks import load", "configs/models/x.yaml": ""}, (),
         "{root} belongs to the project {root}; change to another folder; *"),
        ({"configs/models/x.yaml": ""}, ("--configs", "configs"),
         "files of other programs are in configs; name another folder with --configs"),
        ({"a/b": ""}, ("--configs", "a/b"), "files of other programs are in a/b; *"),
        ({}, ("--configs", "../x"), "../x is outside of this folder; name a folder in it"),
        ({"build/x": "", "build-engines": "", "buildsys-build/x": ""}, (),
         "files of other programs are in build, build-engines, buildsys-build; rename *"),
        ({"buildsys.toml": "", "build/x": ""}, (), "files of other programs are in build; name *"),
        ({"pyproject.toml": "[tool.buildsys]\nconfigs = 1"}, (),
         "pyproject.toml:2: configs: expected the name of a folder; such as *"),
        ({}, ("models",),
         "init takes no arguments, found 'models'; type it without a name"),
        ({}, ("--ci", "githib"), "--ci: invalid choice: 'githib' (choose from *"),
        ({}, ("--force",),
         "init has no option --force; run `buildsys help init` for its options"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_sentence_and_writes_nothing(
    init: Init, tmp_path: Path, files: dict[str, str], arguments: tuple[str, ...], sentence: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = tree(tmp_path)
    code, out = init(*arguments)
    assert code == 3
    assert fnmatchcase(out, f"ERROR: {sentence.format(root=tmp_path)}\n"), out
    assert out.count("\n") == 1
    assert tree(tmp_path) == before


def test_a_folder_of_a_project_is_no_place_for_another(
    init: Init, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert init()[0] == 0
    monkeypatch.chdir(tmp_path / "configs/models")
    code, out = init()
    assert code == 3
    assert f"configs/models belongs to the project {tmp_path}; change to another folder; " in out


HYDRA = {
    "configs/models/small.yaml": "_target_: app.Net\nmodel: {width: 3}\n",
    "build/CMakeCache.txt": "",
    "dodo.py": "# not buildsys\ndef task_hello():\n    return {'actions': ['echo hello']}\n",
    "doit.cfg": "[GLOBAL]\nbackend = json\n",
    ".vscode/settings.json": "{}",
    ".gitignore": "*.log\r\nbuild/",
    "tests/test_x.py": "",
    "plugins/README.md": "",
}


def test_a_repository_keeps_its_files_and_names_other_folders(
    init: Init, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "my répo"
    for name, text in HYDRA.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())
    monkeypatch.chdir(root)
    before = tree(root)
    code, plan = init("--dry-run", "--ci", "gitlab")
    assert (code, tree(root)) == (0, before)
    assert plan.splitlines()[:4] == [
        "configs/ has files of other programs: manifests are in inference/",
        "build/ has files of other programs: outputs are in build-engines/",
        "keeps dodo.py; to have our tasks in it, add this line:",
        "  from buildsys.dodo import task_targets",
    ]
    code, out = init("--ci", "gitlab")
    assert (code, out) == (
        0, f"{plan.replace('would write', 'writes')}next: buildsys build resnet18\n"
    )  # fmt: skip
    ignored = before.pop(".gitignore")
    assert {name: content for name, content in tree(root).items() if name in before} == before
    assert (root / ".gitignore").read_bytes() == (
        ignored + b"\r\n/build-engines/\r\n/.buildsys/\r\n__pycache__/\r\n"
    )
    assert "paths: [build-engines/nightly/, " in (root / ".gitlab-ci.yml").read_text()
    project = load_project(root)
    assert (project.configs, project.build) == (root / "inference", root / "build-engines")
    assert list(project.models) == ["resnet18"]
    after = tree(root)
    assert init()[0] == 3
    assert tree(root) == after


FLAT = "[project]\nname = 'x'\n"


@pytest.mark.parametrize(
    ("files", "variable", "arguments", "folders"),
    [
        ({}, "", (), ("configs", "build")),
        ({"build": None, "configs/train.yaml": "lr: 1", "configs/db.yml": ""}, "", (),
         ("configs", "build")),
        ({"configs": "a file", "build": "a file"}, "", (), ("inference", "build-engines")),
        ({"configs/engines.yaml": "v8: {cylinders: 8}"}, "", (), ("inference", "build")),
        ({"configs/models/x.py": "", "inference/models/net.yaml": "x: ["}, "", (),
         ("buildsys-configs", "build")),
        ({"build/lib/x.py": "", ".buildsys/state.db": ""}, "", (), ("configs", "build")),
        ({}, "ml/my configs", (), ("ml/my configs", "build")),
        ({}, "ml", ("--configs", "öl/"), ("öl", "build")),
        ({"pyproject.toml": "[tool.buildsys]\nconfigs = 'a'\nbuild = 'b'"}, "", (), ("a", "b")),
        ({"pyproject.toml": FLAT, "app/x.py": ""}, "", (), ("buildsys-configs", "build")),
        ({"setup.py": "setup(name='x')"}, "", (), ("buildsys-configs", "build")),
        ({"setup.py": "setup(name='x')"}, "", ("--configs", "conf"), ("conf", "build")),
        ({"pyproject.toml": FLAT, "configs/x.yaml": ""}, "", (), ("configs", "build")),
        ({"pyproject.toml": FLAT, "src/x.py": ""}, "", (), ("configs", "build")),
        ({"pyproject.toml": f"{FLAT}[tool.setuptools]\npackages = ['x']"}, "", (),
         ("configs", "build")),
        ({"pyproject.toml": f"{FLAT}[build-system]\nbuild-backend = 'hatchling.build'"}, "", (),
         ("configs", "build")),
        ({"pyproject.toml": "[tool.ruff]"}, "", (), ("configs", "build")),
    ],
)  # fmt: skip
def test_folders_are_chosen_by_what_is_there(
    init: Init,
    tmp_path: Path,
    files: dict[str, str | None],
    variable: str,
    arguments: tuple[str, ...],
    folders: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).mkdir() if text is None else (tmp_path / name).write_text(text)
    monkeypatch.setenv("BUILDSYS_CONFIGS", variable)
    assert init(*arguments)[0] == 0
    monkeypatch.delenv("BUILDSYS_CONFIGS")
    project = load_project(tmp_path)
    names = tuple(str(path.relative_to(tmp_path)) for path in (project.configs, project.build))
    assert (names, list(project.models)) == (folders, ["resnet18"])
    assert f"/{folders[1]}/\n" in (tmp_path / ".gitignore").read_text()
    assert f'"{folders[0]}/models/*.yaml"' in (tmp_path / ".vscode/settings.json").read_text()
    for name, text in files.items():
        assert text is None or (tmp_path / name).read_text() == text


def test_nothing_is_written_through_a_link(init: Init, tmp_path: Path) -> None:
    root, elsewhere = tmp_path, tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    for name in ("configs", "build", ".vscode"):
        (elsewhere / name).mkdir(parents=True)
        (root / name).symlink_to(elsewhere / name)
    (elsewhere / "ignored").write_text("*.log\n")
    (root / ".gitignore").symlink_to(elsewhere / "ignored")
    before = tree(elsewhere)
    code, out = init()
    assert (code, tree(elsewhere)) == (0, before)
    assert "keeps .vscode/settings.json: it exists, or is behind a link\n" in out
    project = load_project(root)
    assert (project.configs, project.build) == (root / "inference", root / "build-engines")


def test_a_failure_in_the_middle_is_completed_by_the_next_run(
    init: Init, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = command.replace_file

    def fail_at_dodo(path: Path, content: bytes) -> None:
        if path.name == "dodo.py":
            raise OSError(28, "No space left on device", str(path))
        replace(path, content)

    with monkeypatch.context() as context:
        context.setattr(command, "replace_file", fail_at_dodo)
        code, out = init()
    assert code == 3
    assert out.endswith(
        "dodo.py: no space left on device; run `buildsys init` again, it writes the rest\n"
    )
    assert not (tmp_path / "dodo.py").exists()
    assert init()[0] == 0
    assert is_project(tmp_path)
