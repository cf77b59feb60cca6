"""Code of the project, named ``FILE.py:CALLABLE`` in a manifest.

The project's root and the file's folder go to the front of ``sys.path``, as if the file were run as
a script, so its local imports work. Bytecode caches of project files are neither read nor written:
Python trusts a cached file if the source has the same size and modification second, which an edit
between two builds easily has, and the build would then use the old code.
"""

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from buildsys.errors import BuildsysError, StageError
from buildsys.system.files import LIBRARY_FOLDERS, in_library
from buildsys.system.printable import did_you_mean

_PIP_NAMES = {  # packages whose modules have other names
    "cv2": "opencv-python-headless", "PIL": "pillow", "skimage": "scikit-image",
    "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip
_OWN_CODE = Path(__file__).parents[1]
# TorchScript's doc strings have the innermost frame first
_CAPTURED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in ')
_TRACED = re.compile(r"^(?P<file>\S.*)\((?P<line>\d+)\): ", re.MULTILINE)
_TRACER = "/torch/jit/_trace.py"


class _UncachedLoader(SourceFileLoader):
    """Loader without bytecode caches."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def load_callable(reference: str, project: Path) -> Callable[..., Any]:
    """Load the callable ``FILE.py:CALLABLE``; dots in CALLABLE reach into classes.

    Raises: StageError: no such file or callable, or the file raises on import.
    """
    return find_callable(load_module(reference.rpartition(":")[0], project), reference)


def find_callable(module: ModuleType, reference: str) -> Callable[..., Any]:
    """Find the callable ``FILE.py:CALLABLE`` of an imported file.

    Raises: StageError: the module has no such callable.
    """
    function = find_object(module, reference)
    if not callable(function):
        raise StageError(
            f"{reference} is of type {type(function).__name__}", "name a function or a class"
        )
    return function  # type: ignore[no-any-return]  # narrowed to return object


def find_object(module: ModuleType, reference: str) -> Any:
    """Find the object ``FILE.py:NAME`` of an imported file, of any type.

    Raises: StageError: the module has no such name.
    """
    path, _, qualified = reference.rpartition(":")
    target: Any = module
    for name in qualified.split("."):
        if not hasattr(target, name):
            hint = did_you_mean(name, vars(target), "define it there")
            raise StageError(f"{path} has no {qualified}", hint)
        target = getattr(target, name)
    return target


def load_module(path: str, project: Path) -> ModuleType:
    """Execute a file of the project as a private module.

    Raises: StageError: no such file, or it raises.
    """
    file = project_file(path, project)
    _make_importable(project, file.parent)
    name = module_name(path)
    spec = spec_from_file_location(name, file, loader=_UncachedLoader(name, str(file)))
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
        names = [_relative(str(sibling), project) for sibling in siblings]
        hint = did_you_mean(path, names, "check the path, relative to the project")
        raise StageError(f"{path} does not exist in the project", hint)
    return file


def module_name(path: str) -> str:
    """Derive the name of a file's module.

    It is private, so it shadows nothing, and free of the checkout's path, as exporters write it
    into files.
    """
    return "_buildsys_" + re.sub(r"\W", "_", path.removesuffix(".py"))


def _make_importable(project: Path, folder: Path) -> None:
    """Let imports find the project's files without bytecode caches."""
    roots = project.resolve(), folder.resolve()

    def find(path: str) -> FileFinder:
        resolved = Path(path).resolve()
        if not any(map(resolved.is_relative_to, roots)) or in_library(f"{resolved}/"):
            raise ImportError("not a folder of the user's code")
        extensions = (ExtensionFileLoader, EXTENSION_SUFFIXES)
        return FileFinder(path, extensions, (_UncachedLoader, [".py"]))

    sys.path_hooks.insert(0, find)
    sys.path[:] = dict.fromkeys((str(folder), str(project), *sys.path))
    sys.path_importer_cache.clear()


@contextmanager
def reraise_as_stage_error(what: str, project: Path) -> Iterator[None]:
    """Turn an exception of user code into a StageError with its line."""
    try:
        yield
    except BuildsysError:
        raise
    except Exception as error:
        problem = f"{what}: {describe_exception(error, project)}"
        raise StageError(problem, install_hint(error)) from error


def import_library(name: str, project: Path) -> Any:
    """Import a library. Raises: StageError: it is not installed, or fails."""
    with reraise_as_stage_error(f"importing {name} failed", project):
        return importlib.import_module(name)


def install_hint(error: BaseException) -> str:
    """Find the pip command for a missing package, or ""."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    top = (name or "").partition(".")[0]
    return f"pip install {_PIP_NAMES.get(top, top)}" if top and not sys.modules.get(top) else ""


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
        if Path(filename).is_relative_to(_OWN_CODE):
            continue
        if in_library(filename):
            if not library_line and "/torch/" not in filename:
                library_line = f"{_relative(filename, project)}:{line}"
        elif any(Path(filename).is_relative_to(root) for root in (project, project.resolve())):
            return f"{_relative(filename, project)}:{line}"
    return library_line


def captured_frames(trace: str) -> list[tuple[str, int]]:
    """List file and line of each frame in a trace of torch.export, the outermost first."""
    return [(match["file"], int(match["line"])) for match in _CAPTURED.finditer(trace)]


def source_line(trace: str, project: Path) -> str:
    """Find ``file:line`` of a trace's innermost frame in user or library code."""
    if captured := captured_frames(trace):
        return innermost_location(captured[::-1], project)
    frames = []
    for match in _TRACED.finditer(trace):
        if match["file"].endswith(_TRACER):  # further frames are the exporter's callers
            break
        frames.append((match["file"], int(match["line"])))
    return innermost_location(frames, project)


def _relative(filename: str, project: Path) -> str:
    for root in (project, project.resolve()):
        if Path(filename).is_relative_to(root):
            return str(Path(filename).relative_to(root))
    for folder in LIBRARY_FOLDERS:
        filename = filename.rpartition(f"/{folder}/")[2]
    return filename
