"""buildsys init: make the current folder a project, without changing existing files."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from buildsys.cli.command import DODO, find_project, is_project, print_lines
from buildsys.errors import UsageError
from buildsys.report.formatting import first_names
from buildsys.system.files import replace_file

_MODEL = "resnet18"
_GITIGNORE, _SETTINGS = ".gitignore", ".vscode/settings.json"
_IGNORED = (b"/build/", b"/.buildsys/", b"__pycache__/")
_TEMPLATES = {
    "configs/project.yaml": "project.yaml",
    "configs/engines.yaml": "engines.yaml",
    f"configs/models/{_MODEL}.yaml": "resnet18.yaml",
    "plugins/README.md": "plugins.md",
    "doit.cfg": "doit.cfg",
}
_WORKFLOWS = {
    "github": {
        ".github/workflows/nightly.yml": "github-nightly.yml",
        ".github/workflows/pull-request.yml": "github-pull-request.yml",
    },
    "gitlab": {".gitlab-ci.yml": "gitlab-ci.yml"},
}
_MOST_FILES = 3


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys init``."""
    parser.epilog = (
        "writes dodo.py, doit.cfg, configs/, plugins/, .vscode/settings.json and lines of\n"
        ".gitignore. Nothing is overwritten: if a file is in the way, no file is written.\n"
        "In a project, --ci adds the files of the CI system, which reads them at the root of the\n"
        "repository: move them there if the project is in a folder below it"
    )
    parser.add_argument("--ci", choices=[*_WORKFLOWS], help="also write a recipe for a CI system")


def run(options: Namespace) -> int:
    """Write the files, or none."""
    root, next_step = Path.cwd(), "buildsys doctor"
    contents = _templates(_WORKFLOWS.get(options.ci, {}))
    is_new = not (options.ci and is_project(root))
    if is_new:
        if project := find_project(root):
            problem = f"{root} belongs to the project {project}"
            raise UsageError(problem, "change to another folder; `buildsys doctor` helps in this")
        next_step = f"buildsys build {_MODEL}"
        contents = {**_templates(_TEMPLATES), **_editor_files(root), **contents}
        contents |= _templates({DODO: "dodo.template"})  # without it, the folder is no project
    present = [name for name, text in contents.items() if _read(root / name) not in (None, text)]
    if present:
        hint = "move it away, or run `buildsys init` in another folder and copy what is missing"
        listed = first_names(present, _MOST_FILES)
        raise UsageError(f"nothing was written, as these files exist: {listed}", hint)
    if is_new:
        contents = {_GITIGNORE: _with_outputs(_read(root / _GITIGNORE) or b""), **contents}
    changed = {name: text for name, text in contents.items() if _read(root / name) != text}
    try:
        for name, text in changed.items():
            replace_file((root / name).resolve(), text)
    except OSError as error:
        problem = f"cannot write {error.filename or root}: {(error.strerror or '').lower()}"
        raise UsageError(problem, "run `buildsys init` again, it writes the rest") from None
    print_lines([*(f"wrote {name}" for name in changed), f"next: {next_step}"])
    return 0


def _templates(names: Mapping[str, str]) -> dict[str, bytes]:
    """Read packaged files, by path."""
    folder = files("buildsys.cli").joinpath("templates")
    return {path: folder.joinpath(name).read_bytes() for path, name in names.items()}


def _editor_files(root: Path) -> dict[str, bytes]:
    """Generate the JSON Schemas, and settings that name them unless there are settings."""
    from buildsys.project.json_schema import schema_texts

    schemas = {f"configs/schema/{name}": text.encode() for name, text in schema_texts().items()}
    settings = {} if (root / _SETTINGS).exists() else _templates({_SETTINGS: "settings.json"})
    return {**schemas, **settings}


def _with_outputs(ignored: bytes) -> bytes:
    """Add the folders of a build to the text of .gitignore."""
    lines = [line for line in _IGNORED if line not in ignored.split()]
    begin = b"\n" if lines and ignored and not ignored.endswith(b"\n") else b""
    return ignored + begin + b"".join(line + b"\n" for line in lines)


def _read(path: Path) -> bytes | None:
    """Read the content of a regular file, None for anything else."""
    return path.read_bytes() if path.is_file() else None
