"""buildsys init: make the current folder a project, without changing existing files."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path

from doit.doit_cmd import DoitConfig

from buildsys.cli.command import print_lines, unknown_name
from buildsys.cli.project_root import DODO, find_project, is_project
from buildsys.errors import UsageError
from buildsys.report.formatting import first_names
from buildsys.system.files import replace_file

_MODEL = "resnet18"
_GITIGNORE, _PYPROJECT, _SETTINGS = ".gitignore", "pyproject.toml", ".vscode/settings.json"
_IGNORED = (b"/build/", b"/.buildsys/", b"__pycache__/")
_OWN_FOLDERS = ("configs", "plugins", "build", ".buildsys")
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
_SHOWN_FILES = 3


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys init``."""
    parser.epilog = (
        "writes dodo.py, doit.cfg, configs/, plugins/, .vscode/settings.json and lines of\n"
        ".gitignore. Nothing is overwritten: if a file is in the way, no file is written.\n"
        "In a project, --ci adds the files of the CI system"
    )
    parser.add_argument(
        "--ci", default="", help="also write a recipe for a CI system: github or gitlab"
    )


def run(options: Namespace) -> int:
    """Write the files, or none."""
    root, system = Path.cwd(), options.ci
    if system and system not in _WORKFLOWS:
        raise unknown_name("CI system", system, _WORKFLOWS, f"known: {', '.join(_WORKFLOWS)}")
    contents = _templates(_WORKFLOWS.get(system, {}))
    next_step = "buildsys doctor"
    if not (system and is_project(root)):
        _check_folder(root)
        next_step = f"buildsys build {_MODEL}"
        contents = {**_templates(_TEMPLATES), **_editor_files(root), **contents}
        contents[_GITIGNORE] = _with_outputs(_read(root / _GITIGNORE) or b"")
        # last: without it, the folder is no project
        contents |= _templates({DODO: "dodo.template"})
    _check_files(root, contents)
    changed = {name: text for name, text in contents.items() if _read(root / name) != text}
    try:
        for name, text in changed.items():
            replace_file((root / name).resolve(), text)
    except OSError as error:
        problem = f"cannot write {error.filename or root}: {(error.strerror or '').lower()}"
        raise UsageError(problem, "run `buildsys init` again, it writes the rest") from None
    print_lines(f"wrote {name}" for name in changed)
    print_lines(_notes(root, system))
    print_lines([f"next: {next_step}"])
    return 0


def _notes(root: Path, system: str) -> Iterator[str]:
    """Yield a sentence about a recipe below the root of the repository."""
    repository = next(
        (folder for folder in (root, *root.parents) if (folder / ".git").exists()), root
    )
    if system and repository != root:
        recipe = next(iter(_WORKFLOWS[system])).partition("/")[0]
        yield (
            f"note: CI reads {recipe} at the root of the repository: move it to {repository}, and"
            f" let its commands and paths start in {root.relative_to(repository)}"
        )


def _templates(names: Mapping[str, str]) -> dict[str, bytes]:
    """Read packaged files, by path."""
    folder = files(__package__).joinpath("templates")
    return {path: folder.joinpath(name).read_bytes() for path, name in names.items()}


def _editor_files(root: Path) -> dict[str, bytes]:
    """Generate the JSON Schemas, and settings that name them unless there are settings."""
    from buildsys.project.json_schema import schema_texts

    schemas = {f"configs/schema/{name}": text.encode() for name, text in schema_texts().items()}
    return (
        schemas
        if (root / _SETTINGS).exists()
        else {**schemas, **_templates({_SETTINGS: "settings.json"})}
    )


def _check_folder(root: Path) -> None:
    """Check a folder for its use as a project.

    Raises: UsageError: it is one, belongs to one, or uses doit for something else.
    """
    project = find_project(root)
    if project == root:
        raise UsageError(f"{root} is a project already", "`buildsys doctor` shows the next step")
    if project and root.relative_to(project).parts[0] in _OWN_FOLDERS:
        raise UsageError(f"{root} belongs to the project {project}", "change to another folder")
    elsewhere = "run `buildsys init` in another folder, which may be below this one"
    if (root / DODO).exists():
        problem = f"{root / DODO} is not a dodo file of buildsys, and nothing is overwritten"
        raise UsageError(problem, elsewhere)
    try:
        settings = DoitConfig().load_config_toml(_PYPROJECT, "tool.doit").get("GLOBAL", {})
    except (OSError, ValueError) as error:
        hint = "doit reads it as well; repair it first"
        raise UsageError(f"{root / _PYPROJECT} cannot be read: {error}", hint) from None
    if settings.get("loader", "buildsys") != "buildsys" or "dodoFile" in settings:
        raise UsageError(f"{root / _PYPROJECT} configures doit for other tasks", elsewhere)


def _with_outputs(ignored: bytes) -> bytes:
    """Return the text of .gitignore with the folders of a build."""
    lines = [line for line in _IGNORED if line not in ignored.split()]
    begin = b"\n" if lines and ignored and not ignored.endswith(b"\n") else b""
    return ignored + begin + b"".join(line + b"\n" for line in lines)


def _check_files(root: Path, contents: Mapping[str, bytes]) -> None:
    """Raise UsageError if a file would be overwritten, or another manifest would be taken up.

    Files with the same content are those of an interrupted init.
    """
    present = [name for name, text in contents.items() if _is_in_the_way(root, name, text)]
    if DODO in contents:
        manifests = sorted((root / "configs/models").rglob("*.y*ml"))
        names = (path.relative_to(root).as_posix() for path in manifests)
        present += [name for name in names if name not in contents]
    if present:
        exist = "exists" if len(present) == 1 else "exist"
        hint = "move it away, or run `buildsys init` in an empty folder and copy what is missing"
        listed = first_names(present, _SHOWN_FILES)
        raise UsageError(f"{listed} {exist} already, so nothing was written", hint)


def _is_in_the_way(root: Path, name: str, content: bytes) -> bool:
    path = root / name
    inside = path.parents[: len(Path(name).parts) - 1]
    if any(os.path.lexists(folder) and not folder.is_dir() for folder in inside):
        return True
    if name == _GITIGNORE and path.is_file():  # lines are added
        return False
    return os.path.lexists(path) and _read(path) != content


def _read(path: Path) -> bytes | None:
    """Read the content of a regular file, None for anything else."""
    return path.read_bytes() if path.is_file() else None
