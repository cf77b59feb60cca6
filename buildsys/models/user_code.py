"""The user's code, named ``FILE.py:CALLABLE`` or ``package.module:CALLABLE`` in a manifest.

It is imported by the name that Python has for it, so that its modules exist once; a file without
such a name is a private module. The folder of a script, the project and the code roots go to the
front of ``sys.path``. Bytecode caches of user code are neither read nor written: Python trusts a
cached file if the source has the same size and modification second, which an edit between two
builds easily has, and the build would then use the old code.
"""

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from buildsys.errors import BuildsysError, StageError
from buildsys.system.code_kinds import LIBRARY, USER, code_kind, display_name, is_user_code
from buildsys.system.files import LIBRARY_FOLDERS
from buildsys.system.printable import did_you_mean
from buildsys.system.user_modules import (
    MODULE,
    UserModule,
    code_roots,
    job_code,
    locate,
    source_of,
    split_reference,
)

_PIP_NAMES = {  # packages whose modules have other names
    "cv2": "opencv-python-headless", "PIL": "pillow", "skimage": "scikit-image",
    "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip
# TorchScript's doc strings have the innermost frame first
_CAPTURED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in ')
_TRACED = re.compile(r"^(?P<file>\S.*)\((?P<line>\d+)\): ", re.MULTILINE)
_DEEPEST = 3  # levels of folders with packages to look for
_OTHER_FOLDERS = ("build", "node_modules", "site-packages", "venv")
_script_folders: set[str] = set()  # added to the module path of this process
_TRACER = "/torch/jit/_trace.py"


class _UncachedLoader(SourceFileLoader):
    """Loader without bytecode caches."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _UserCodeFinder:
    """Finds modules as all other finders do, and loads user code without bytecode caches."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not cls and (spec := finder.find_spec(name, path, target)):
                if type(spec.loader) is SourceFileLoader and is_user_code(spec.loader.path):
                    spec.loader = _UncachedLoader(name, spec.loader.path)
                return spec
        return None


def load_callable(reference: str, project: Path) -> Callable[..., Any]:
    """Load a callable; dots in its name reach into classes.

    Raises: StageError: no such module or callable, or the module raises on import.
    """
    return find_callable(load_module(source_of(reference), project), reference)


def find_callable(module: ModuleType, reference: str) -> Callable[..., Any]:
    """Find a callable of an imported module.

    Raises: StageError: the module has no such callable.
    """
    function = find_object(module, reference)
    if not callable(function):
        raise StageError(
            f"{reference} is of type {type(function).__name__}", "name a function or a class"
        )
    return function  # type: ignore[no-any-return]  # narrowed to return object


def find_object(module: ModuleType, reference: str) -> Any:
    """Find an object of an imported module, of any type.

    Raises: StageError: the module has no such name.
    """
    path, qualified = split_reference(reference)
    target: Any = module
    for name in qualified.split("."):
        if not hasattr(target, name):
            hint = did_you_mean(name, vars(target), "define it there")
            raise StageError(f"{path} has no {qualified}", hint)
        target = getattr(target, name)
    return target


def load_module(source: str, project: Path) -> ModuleType:
    """Import a module of the user's code: a file, or a name that ends in ``MODULE``.

    Raises: StageError: no such module, or it raises.
    """
    place = located(source, project)
    _make_importable(place, project)
    title = source.removesuffix(MODULE)
    hidden_by = _other_module(place)
    if not hidden_by:
        with reraise_as_stage_error(f"importing {title} failed", project):
            module = importlib.import_module(place.name)
        if _is_file(module, place.file):
            return module
        hidden_by = str(getattr(module, "__file__", None) or place.name)
    if source.endswith(MODULE):
        other = display_name(hidden_by, project)
        problem = f"{title} is not {display_name(place.file, project)}, which {other} hides"
        raise StageError(problem, "rename the package, or name the file")
    try:
        return _load_privately(place.file, title, project)
    except StageError as error:
        if place.name and _is_relative_import(error.__cause__):
            hint = f"rename its package, which {display_name(hidden_by, project)} hides"
            raise StageError(error.problem, hint) from error.__cause__
        raise


def located(source: str, project: Path) -> UserModule:
    """Locate a module of the user's code. Raises: StageError: it does not exist."""
    path = [entry for entry in sys.path if entry not in _script_folders]
    place = locate(source, str(project), job_code, path)
    if place is None:
        problem = f"there is no module {source.removesuffix(MODULE)}"
        raise StageError(problem, "name its file, or the folder of its package in code")
    if not os.path.isfile(place.file):  # noqa: PTH113
        project_file(source, project)
    return place


def _load_privately(file: str, path: str, project: Path) -> ModuleType:
    """Execute a file that has no name to import it by, or another module's."""
    # free of the checkout's path, as exporters write it into files
    name = "_buildsys_" + re.sub(r"\W", "_", path.removesuffix(".py"))
    if _is_file(sys.modules.get(name), file):
        return sys.modules[name]
    spec = spec_from_file_location(name, file, loader=_UncachedLoader(name, file))
    if spec is None or spec.loader is None:
        raise StageError(f"{path} is not a Python file", "name a file that ends in .py")
    with reraise_as_stage_error(f"importing {path} failed", project):
        module = module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickle look their module up by name
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def project_file(path: str, project: Path) -> Path:
    """Locate a file of the project. Raises: StageError: it does not exist."""
    file = project / path
    if not file.is_file():
        siblings = file.parent.glob(f"*{file.suffix}")
        names = [display_name(str(sibling), project) for sibling in siblings]
        hint = did_you_mean(path, names, "check the path, relative to the project")
        raise StageError(f"{path} does not exist in the project", hint)
    return file


def _make_importable(place: UserModule, project: Path) -> None:
    """Let Python find the module, and the modules that it imports."""
    if _UserCodeFinder not in sys.meta_path:
        sys.meta_path.insert(0, _UserCodeFinder)
    if not place.root:
        return
    folder = os.path.dirname(place.file)  # noqa: PTH120
    is_script = not os.path.isfile(f"{folder}/__init__.py")  # noqa: PTH113
    if folder not in sys.path:
        _script_folders.add(folder)
    own = [folder] if is_script else []
    roots = code_roots(str(project), job_code)
    # a file of a package may have imports of its neighbours that only work in a script
    sys.path[:] = dict.fromkeys((*own, place.root, *roots, *sys.path, folder))
    sys.path_importer_cache.clear()


def _other_module(place: UserModule) -> str:
    """Find what Python imports instead of a module, or ""."""
    if not place.root:
        return ""
    top, spec = place.name.partition(".")[0], None
    if top and top not in sys.stdlib_module_names:
        with suppress(ImportError, ValueError, AttributeError):  # raised by finders of others
            spec = find_spec(top)
    if spec is None:
        return top or "nothing"
    inside = spec.submodule_search_locations
    places = [spec.origin or ""] if inside is None else inside
    expected = place.file if inside is None else f"{place.root}/{top}"
    is_found = os.path.realpath(expected) in map(os.path.realpath, places)
    return "" if is_found else spec.origin or top


def _is_file(module: ModuleType | None, file: str) -> bool:
    of_module = getattr(module, "__file__", None)
    return bool(of_module) and os.path.realpath(str(of_module)) == os.path.realpath(file)


@contextmanager
def reraise_as_stage_error(what: str, project: Path) -> Iterator[None]:
    """Turn an exception of user code into a StageError with its line."""
    try:
        yield
    except BuildsysError:
        raise
    except (Exception, SystemExit) as error:
        problem = f"{what}: {describe_exception(error, project)}"
        raise StageError(problem, import_hint(error, project)) from error


def import_library(name: str, project: Path) -> Any:
    """Import a library. Raises: StageError: it is not installed, or fails."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        problem = f"importing {name} failed: {describe_exception(error, project)}"
        raise StageError(problem, _pip_command(_missing_module(error))) from error


def import_hint(error: BaseException, project: Path) -> str:
    """Find the next step for a failed import: a setting, a name, a pip command, or ""."""
    if _is_relative_import(error):
        return "name it as Python imports it from the project, package.module:NAME"
    if isinstance(error, SystemExit):
        return 'put what only a script does below `if __name__ == "__main__":`'
    top = _missing_module(error)
    if not top:
        return ""
    above = (folder for folder in (project, *project.parents) if (folder / ".git").exists())
    repository = next(above, project)
    for folder, folders, files in os.walk(repository):
        inside = os.path.relpath(folder, project)
        if len(Path(os.path.relpath(folder, repository)).parts) == _DEEPEST:
            folders.clear()
        # a link may lead to all of a disk, a virtual environment has the libraries' modules
        folders[:] = (n for n in folders if n[:1] != "." and n not in _OTHER_FOLDERS)
        if f"{top}.py" in files or (top in folders and any(Path(folder, top).glob("*.py"))):
            return (
                f'{inside}/ has it: write code = ["{inside}"] in [tool.buildsys] of pyproject.toml'
            )
    return _pip_command(top)


def _is_relative_import(error: BaseException | None) -> bool:
    """Check for a relative import in a module that is in no package."""
    return isinstance(error, ImportError) and "relative import" in str(error)


def _missing_module(error: BaseException) -> str:
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    top = (name or "").partition(".")[0]
    return "" if sys.modules.get(top) else top


def _pip_command(module: str) -> str:
    return f"pip install {_PIP_NAMES.get(module, module)}" if module else ""


def describe_exception(error: BaseException, project: Path) -> str:
    """Describe as ``Type: message (file:line)`` with the innermost project or library line."""
    # a SyntaxError's text ends with its place, which follows
    message = error.msg if isinstance(error, SyntaxError) and error.lineno else str(error)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    count = 2 if lines and lines[0].endswith(":") else 1  # a heading says nothing alone
    text = f"{type(error).__name__}: {' '.join(lines[:count])}".removesuffix(": ")
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        where = f"{_relative(error.filename, project)}:{error.lineno}"
    else:
        frames = reversed(traceback.extract_tb(error.__traceback__))
        where = innermost_location(
            [(frame.filename, frame.lineno or 0) for frame in frames], project
        )
    return f"{text} ({where})" if where and where not in text else text


def first_line(error: BaseException) -> str:
    """Take the first line of an exception's text, else its class."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def innermost_location(frames: list[tuple[str, int]], project: Path) -> str:
    """Find ``file:line`` of the first frame in user or library code.

    ``frames`` are innermost first; user code has priority, and torch is not a library here.
    """
    library_line = ""
    for filename, line in frames:
        kind = code_kind(filename)
        if kind == USER:
            return f"{_relative(filename, project)}:{line}"
        if kind == LIBRARY and not library_line and "/torch/" not in filename:
            library_line = f"{_relative(filename, project)}:{line}"
    return library_line


def source_line(trace: str, project: Path) -> str:
    """Find ``file:line`` of a trace's innermost frame in user or library code."""
    # those of torch.export have the outermost one first
    if captured := [(match["file"], int(match["line"])) for match in _CAPTURED.finditer(trace)]:
        return innermost_location(captured[::-1], project)
    frames = []
    for match in _TRACED.finditer(trace):
        if match["file"].endswith(_TRACER):  # further frames are the exporter's callers
            break
        frames.append((match["file"], int(match["line"])))
    return innermost_location(frames, project)


def _relative(filename: str, project: Path) -> str:
    for folder in LIBRARY_FOLDERS:
        if f"/{folder}/" in filename:
            return filename.rpartition(f"/{folder}/")[2]
    return display_name(filename, project)
