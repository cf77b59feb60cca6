"""buildsys init: make the current folder a project, without changing files of others."""

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from buildsys.cli.command import DODO, find_project, has_own_dodo, is_project, print_lines
from buildsys.errors import ManifestErrors, UsageError
from buildsys.project.load import STATE_FOLDER, empty_project, load_project
from buildsys.project.settings import SETTINGS_FILE
from buildsys.report.formatting import first_names
from buildsys.system.files import replace_file

_MODEL = "resnet18"
_GITIGNORE, _EDITOR = ".gitignore", ".vscode/settings.json"
_CONFIGS = ("configs", "inference", "buildsys-configs")  # the first without files of others
_BUILD = ("build", "build-engines", "buildsys-build")
_EXAMPLE = f"models/{_MODEL}.yaml"
_ENGINES = {  # presets, with backend and precision
    "ort-cpu": ("onnxruntime", "fp32"),
    "rtx-fp16": ("tensorrt_rtx", "fp16"),
    "trt-fp32": ("tensorrt", "fp32"),
    "trt-fp16": ("tensorrt", "fp16"),
}
_WORKFLOWS = {
    "github": {
        ".github/workflows/nightly.yml": "github-nightly.yml",
        ".github/workflows/pull-request.yml": "github-pull-request.yml",
    },
    "gitlab": {".gitlab-ci.yml": "gitlab-ci.yml"},
}
_MOST_FILES = 3
_HAS_OTHERS = "has files of other programs"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys init``."""
    parser.epilog = (
        f"writes manifests, {DODO}, doit.cfg, {_EDITOR} and lines of .gitignore. Files\n"
        "that exist stay as they are: with other files in configs/ or build/, it chooses other\n"
        f"folders and names them in {SETTINGS_FILE}.\n"
        "In a project, --ci adds the files of the CI system, which reads them at the root of the\n"
        "repository: move them there if the project is in a folder below it"
    )
    parser.add_argument("--ci", choices=[*_WORKFLOWS], help="also write a recipe for a CI system")
    parser.add_argument("--configs", default="", help="folder for manifests")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be written")


def run(options: Namespace) -> int:
    """Write what the folder lacks."""
    root = Path.cwd()
    if options.ci and is_project(root) and (empty_project(root).configs / "models").exists():
        contents, notes, next_step = dict[str, bytes](), list[str](), "buildsys doctor"
        build = os.path.relpath(empty_project(root).build, root)
    else:
        example = {_EXAMPLE: _template(f"{_MODEL}.yaml")}
        contents, notes, build = _new_project(root, options.configs, example)
        is_first = any(name.endswith(f"/{_MODEL}.yaml") for name in contents)
        next_step = f"buildsys build {_MODEL}" if is_first else "buildsys list"
    recipes = _templates(_WORKFLOWS.get(options.ci, {}))
    recipes = {n: text.replace(b"build/", f"{build}/".encode()) for n, text in recipes.items()}
    _write(root, {**recipes, **contents}, notes, dry_run=options.dry_run)
    if not options.dry_run:
        print_lines([f"next: {next_step}"])
    return 0


def write_project(root: Path, model: str, manifest: bytes) -> None:
    """Make a folder a project with one model. Raises: UsageError: files are in the way."""
    contents, notes, _ = _new_project(root, "", {f"models/{model}.yaml": manifest})
    _write(root, contents, notes)


def _write(
    root: Path, contents: Mapping[str, bytes], notes: list[str], *, dry_run: bool = False
) -> None:
    """Print what is written, then write it. Raises: UsageError: nothing can be written."""
    changed = {name: text for name, text in contents.items() if _read(root / name) != text}
    present = [name for name in changed if _is_taken(root, name)]
    changed = {name: text for name, text in changed.items() if name not in present}
    if present and not changed:
        hint = "move it away, or run `buildsys init` in another folder and copy what is missing"
        listed = first_names(present, _MOST_FILES)
        raise UsageError(f"nothing was written, as these files exist: {listed}", hint)
    verb = "would write" if dry_run else "writes"
    lines = [*notes, *(f"keeps {name}: it exists, or is behind a link" for name in present)]
    print_lines([*lines, *(f"{verb} {name}" for name in changed)])
    if dry_run:
        return
    try:
        for name, text in changed.items():
            replace_file(root / name, text)
    except OSError as error:
        problem = f"cannot write {error.filename or root}: {(error.strerror or '').lower()}"
        raise UsageError(problem, "run `buildsys init` again, it writes the rest") from None


def _new_project(
    root: Path, configs: str, manifests: Mapping[str, bytes]
) -> tuple[dict[str, bytes], list[str], str]:
    """Choose folders; return files, notes on what is in the way, and the folder of outputs.

    The files that make the folder a project are the last.
    Raises: UsageError: it is or belongs to one, or a folder that is named has files of others.
    """
    from buildsys.project.json_schema import schema_texts

    project, has_dodo = find_project(root), os.path.lexists(root / DODO)
    if project and (project != root or (empty_project(root).configs / "models").exists()):
        problem = f"{root} belongs to the project {project}"
        raise UsageError(problem, "change to another folder; `buildsys doctor` helps in this")
    notes: list[str] = []
    if project:
        folders = empty_project(root)
        names = [os.path.relpath(folder, root) for folder in (folders.configs, folders.build)]
        if not _takes_outputs(root, folders.build):
            hint = f"name another folder as `build` in {SETTINGS_FILE} or pyproject.toml"
            raise UsageError(f"files of other programs are in {names[1]}", hint)
    else:
        chosen = configs or os.environ.get("BUILDSYS_CONFIGS", "")
        names = [_manifest_folder(root, chosen, notes), _build_folder(root, notes)]
    configs, build = names
    contents = {_GITIGNORE: _with_outputs(_read(root / _GITIGNORE) or b"", build)}
    if not (root / configs / "models").exists():  # else they are manifests of ours
        shared = {name: _template(name) for name in ("engines.yaml", "project.yaml")}
        contents |= {f"{configs}/{name}": text for name, text in {**shared, **manifests}.items()}
    contents |= {f"{configs}/schema/{n}": text.encode() for n, text in schema_texts().items()}
    settings = _templates({_EDITOR: "settings.json"})[_EDITOR]
    if not os.path.lexists(root / _EDITOR):
        contents[_EDITOR] = settings.replace(b'"configs/', f'"{configs}/'.encode())
    if not has_dodo:
        contents |= _templates({"doit.cfg": "doit.cfg", DODO: "dodo.template"})
    elif not has_own_dodo(root):
        notes += [f"keeps {DODO}; to have our tasks in it, add this line:"]
        notes += ["  from buildsys.dodo import task_targets"]
    if not project and (has_dodo or (configs, build) != (_CONFIGS[0], _BUILD[0])):
        lines = (
            f"{key} = {json.dumps(n, ensure_ascii=False)}"
            for key, n in zip(("configs", "build"), names, strict=True)
        )
        text = "\n".join(("# Folders of buildsys, with its manifests and its outputs", *lines, ""))
        contents[SETTINGS_FILE] = text.encode()
    return contents, notes, build


def _manifest_folder(root: Path, chosen: str, notes: list[str]) -> str:
    """Choose the folder of manifests. Raises: UsageError: it has files of others."""
    chosen = chosen and os.path.relpath(os.path.normpath(root / chosen), root)
    if Path(chosen).parts[:1] == (os.pardir,):
        raise UsageError(f"{chosen} is outside of this folder", "name a folder in it")
    names, present = [chosen] if chosen else _CONFIGS, {path.name for path in root.iterdir()}
    free = [name for name in names if _takes_manifests(root, root / name)]
    is_package = not chosen and _finds_packages(root)
    name = next((n for n in free if not (is_package and n.isidentifier() and n not in present)), "")
    if not name:
        problem = f"files of other programs are in {', '.join(names)}"
        raise UsageError(problem, "name another folder with --configs")
    if name != names[0]:
        why = "would be a package for setuptools" if names[0] in free else _HAS_OTHERS
        notes.append(f"{names[0]}/ {why}: manifests are in {name}/")
    return name


def _finds_packages(root: Path) -> bool:
    """Check whether setuptools would take a new folder for a second package, and stop.

    It looks for packages by itself without `packages` in its settings and without a folder src.
    """
    files = (_read(root / name) or b"" for name in ("pyproject.toml", "setup.py", "setup.cfg"))
    text = b"".join(files)
    is_distribution = b"[project]" in text or b"setup(" in text or b"[metadata]" in text
    is_other = b"build-backend" in text and b"setuptools" not in text
    return is_distribution and not (is_other or b"packages" in text or (root / "src").is_dir())


def _is_taken(root: Path, name: str) -> bool:
    """Check for a file that is not ours to write, such as one in a linked folder."""
    path = root / name
    is_linked = any(part.is_symlink() for part in (path, *path.parents) if root in part.parents)
    return is_linked or (name != _GITIGNORE and os.path.lexists(root / name))


def _takes_manifests(root: Path, folder: Path) -> bool:
    """Check that no file of a folder would be a broken manifest."""
    if not os.path.lexists(folder):
        return True
    if not folder.is_dir() or folder.is_symlink():
        return False
    read = [folder / name for name in ("models", "project.yaml", "engines.yaml")]
    if not any(map(os.path.lexists, read)):
        return True
    try:
        project = load_project(root, remember=False, configs=folder)
    except ManifestErrors:
        return False
    return bool(project.models) and not project.broken


def _build_folder(root: Path, notes: list[str]) -> str:
    """Choose the folder of outputs. Raises: UsageError: all have files of others."""
    name = next((name for name in _BUILD if _takes_outputs(root, root / name)), "")
    if not name:
        problem = f"files of other programs are in {', '.join(_BUILD)}"
        raise UsageError(problem, "rename one of these folders")
    if name != _BUILD[0]:
        notes.append(f"{_BUILD[0]}/ {_HAS_OTHERS}: outputs are in {name}/")
    return name


def _takes_outputs(root: Path, folder: Path) -> bool:
    """Check for a new or empty folder, or one of an earlier project."""
    if not os.path.lexists(folder):
        return True
    is_folder = folder.is_dir() and not folder.is_symlink()
    has_built = (root / STATE_FOLDER / "state.db").is_file()
    return is_folder and (has_built or not any(folder.iterdir()))


def default_engines() -> list[str]:
    """List presets of engines that can run here."""
    from buildsys.system.backend_registry import describe_backend
    from buildsys.system.programs import missing_requirement

    names = []
    for name, (backend, precision) in _ENGINES.items():
        description = describe_backend(backend)
        on_gpu = description.runs_on_gpu({"backend": backend, "precision": precision})
        if not missing_requirement(None, (description.distribution,), on_gpu=on_gpu, remedy=""):
            names.append(name)
    return names or [*_ENGINES][:1]


def preset_text() -> bytes:
    """Read the presets of engines that a new project has."""
    return _template("engines.yaml")


def _template(name: str) -> bytes:
    """Read a packaged manifest, with the engines that can run here."""
    text = _templates({"": name})[""]
    return text.replace(b"ENGINES", ", ".join(default_engines()).encode())


def _templates(names: Mapping[str, str]) -> dict[str, bytes]:
    """Read packaged files, by path."""
    folder = files("buildsys.cli").joinpath("templates")
    return {path: folder.joinpath(name).read_bytes() for path, name in names.items()}


def _with_outputs(ignored: bytes, build: str) -> bytes:
    """Add the folders of a build to the text of .gitignore, with its ends of lines."""
    present = {line.strip(b"/") for line in ignored.split()}
    lines = [f"/{build}/".encode(), b"/.buildsys/", b"__pycache__/"]
    lines = [line for line in lines if line.strip(b"/") not in present]
    end = b"\r\n" if b"\r\n" in ignored else b"\n"
    begin = end if lines and ignored and not ignored.endswith(b"\n") else b""
    return ignored + begin + b"".join(line + end for line in lines)


def _read(path: Path) -> bytes | None:
    """Read the content of a regular file, None for anything else."""
    return path.read_bytes() if path.is_file() else None
