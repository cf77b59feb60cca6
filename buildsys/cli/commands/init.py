"""buildsys init: make the current folder a project, without changing existing files."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from buildsys.cli.command import print_lines, unknown_name
from buildsys.cli.project_root import DODO, find_project, is_project
from buildsys.errors import UsageError
from buildsys.report.formatting import first_names
from buildsys.system.files import replace_file

_MODEL = "resnet18"
_GITIGNORE, _SETTINGS = ".gitignore", ".vscode/settings.json"
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
_MOST_FILES = 3


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys init``."""
    parser.epilog = (
        "writes dodo.py, doit.cfg, configs/, plugins/, .vscode/settings.json and lines of\n"
        ".gitignore. Nothing is overwritten: if a file is in the way, no file is written.\n"
        "In a project, --ci adds the files of the CI system, which reads them at the root of the\n"
        "repository: move them there if the project is in a folder below it"
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
    print_lines([f"next: {next_step}"])
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
    """Return the text of .gitignore with the folders of a build."""
    lines = [line for line in _IGNORED if line not in ignored.split()]
    begin = b"\n" if lines and ignored and not ignored.endswith(b"\n") else b""
    return ignored + begin + b"".join(line + b"\n" for line in lines)


def _check_folder(root: Path) -> None:
    """Raise UsageError for a folder that is a project, or has tasks of doit."""
    project = find_project(root)
    if project == root:
        raise UsageError(f"{root} is a project already", "`buildsys doctor` shows the next step")
    if project and root.relative_to(project).parts[0] in _OWN_FOLDERS:
        raise UsageError(f"{root} belongs to the project {project}", "change to another folder")


def _check_files(root: Path, contents: Mapping[str, bytes]) -> None:
    """Raise UsageError if a file would be overwritten, or another manifest would be taken up.

    Files with the same content are those of an interrupted init.
    """
    present = [
        name
        for name, content in contents.items()
        if os.path.lexists(root / name) and _read(root / name) != content
        if name != _GITIGNORE or not (root / name).is_file()  # which gets further lines
    ]
    present += [name for name in contents if any(p.is_file() for p in (root / name).parents)]
    if DODO in contents:
        manifests = sorted((root / "configs/models").rglob("*.y*ml"))
        names = (path.relative_to(root).as_posix() for path in manifests)
        present += [name for name in names if name not in contents]
    if present:
        hint = "move it away, or run `buildsys init` in another folder and copy what is missing"
        listed = first_names(present, _MOST_FILES)
        raise UsageError(f"nothing was written, as these files exist: {listed}", hint)


def _read(path: Path) -> bytes | None:
    """Read the content of a regular file, None for anything else."""
    return path.read_bytes() if path.is_file() else None
