"""Callables of the project, named ``FILE.py:CALLABLE`` in a manifest.

The project's root and the file's own folder go to the front of ``sys.path``, as if the file were run as a
script, so its local imports work. Bytecode caches are neither read nor written for files of the project:
Python trusts a cached file whose source has the same size and the same second of modification, which an
edit between two builds easily has, and the build would then use the old code.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from buildsys.errors import BuildsysError, StageError
from buildsys.system.suggestions import nearest

_LIBRARY_FOLDERS = ("site-packages", "dist-packages")


class _UncachedLoader(SourceFileLoader):
    """Compiles the source as it is now."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def load_callable(reference: str, project: Path) -> Callable[..., Any]:
    """Return the callable that ``FILE.py:CALLABLE`` names; dots in CALLABLE reach into classes.

    Raises: StageError: no such file or callable, or the file raises when it is imported.
    """
    path, _, _ = reference.rpartition(":")
    return find_callable(load_module(path, project), reference)


def load_object(reference: str, project: Path) -> Any:
    """Return what ``FILE.py:NAME`` names, whatever it is.

    Raises: StageError: no such file or name, or the file raises when it is imported.
    """
    path, _, _ = reference.rpartition(":")
    return _find(load_module(path, project), reference)


def find_callable(module: ModuleType, reference: str) -> Callable[..., Any]:
    """Return the callable that ``FILE.py:CALLABLE`` names in the module of that file.

    Raises: StageError: the module has no such callable.
    """
    found = _find(module, reference)
    if not callable(found):
        raise StageError(f"{reference} is {with_article(type(found).__name__)}, not a callable")
    return found  # type: ignore[no-any-return]  # callable() narrows Any to a callable that returns object


def _find(module: ModuleType, reference: str) -> Any:
    path, _, qualified = reference.rpartition(":")
    found: Any = module
    for name in qualified.split("."):
        if not hasattr(found, name):
            raise StageError(f"{path} has no {qualified}", _nearest(name, found))
        found = getattr(found, name)
    return found


def check_parameters(
    function: Callable[..., Any], reference: str, count: int, takes: str, example: str
) -> None:
    """Check that a function can be called with ``count`` arguments; ``takes`` and ``example`` say with which.

    Raises: StageError: it cannot; names the parameters that it has.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a callable written in C says nothing of its parameters
        return
    try:
        signature.bind(*(None,) * count)
    except TypeError as error:
        names = ", ".join(signature.parameters) or "none"
        raise StageError(f"{reference} takes the parameters ({names}); {takes}", example) from error


@contextmanager
def reraise_as_stage_error(what: str, project: Path) -> Iterator[None]:
    """Turn an exception of the user's code into one sentence with its file and line."""
    try:
        yield
    except BuildsysError:
        raise
    except Exception as error:
        raise StageError(f"{what}: {describe_exception(error, project)}") from error


def describe_exception(error: BaseException, project: Path) -> str:
    """Return ``Type: message (file:line)``; the line is the innermost one of the project, else of a library."""
    message = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {message[0].strip()}" if message else type(error).__name__
    where = _location(error, project)
    return f"{text} ({where})" if where and where not in text else text


def shown_frame(filename: str, line: int, project: Path, *, libraries: bool = False) -> str:
    """Return ``file:line`` of a frame in the user's own files, or with ``libraries`` in one that is not torch's.

    Empty for all other frames. A file of a library is shown by its path in site-packages.
    """
    if not libraries:
        return f"{_relative(filename, project)}:{line}" if _is_users(filename, project) else ""
    return f"{_relative(filename, project)}:{line}" if _is_of_a_library(filename) else ""


def load_module(shown: str, project: Path) -> ModuleType:
    """Execute a file of the project, named relative to it, as a module of its own.

    Raises: StageError: no such file, or it raises.
    """
    file = project / shown
    if not file.is_file():
        raise StageError(f"{shown} does not exist in the project", _similar_files(file, project))
    _make_importable(project, file.parent)
    name = module_name(shown)
    spec = spec_from_file_location(name, file, loader=_UncachedLoader(name, str(file)))
    if spec is None or spec.loader is None:
        raise StageError(f"{shown} is not a Python file")
    with reraise_as_stage_error(f"importing {shown} failed", project):
        return _execute(spec)


def module_name(shown: str) -> str:
    """Return the name of a file's module.

    It is private, so that it shadows nothing; without the checkout's path, because exporters write it into files.
    """
    return "_buildsys_" + re.sub(r"\W", "_", shown.removesuffix(".py"))


def _execute(spec: ModuleSpec) -> ModuleType:
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up by name
    try:
        assert spec.loader is not None
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _make_importable(project: Path, folder: Path) -> None:
    """Let imports find the project's files, past any bytecode cache."""
    root = project.resolve()

    def find(path: str) -> FileFinder:
        inside = Path(path).resolve()
        if not inside.is_relative_to(root) or any(
            part in _LIBRARY_FOLDERS for part in inside.parts
        ):
            raise ImportError("not a folder of the project")
        return FileFinder(
            path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_UncachedLoader, [".py"])
        )

    sys.path_hooks.insert(0, find)
    for entry in dict.fromkeys((str(project), str(folder))):
        if entry in sys.path:
            sys.path.remove(entry)
        sys.path.insert(0, entry)
    for known in [path for path in sys.path_importer_cache if Path(path).is_relative_to(root)]:
        del sys.path_importer_cache[known]


def _location(error: BaseException, project: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{_relative(error.filename, project)}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if _is_users(f.filename, project)]
    library = [f for f in frames if _is_of_a_library(f.filename)]
    for candidates in (own, library):
        if candidates:
            return f"{_relative(candidates[-1].filename, project)}:{candidates[-1].lineno}"
    return ""


def _is_users(filename: str, project: Path) -> bool:
    inside = Path(filename).is_relative_to(project) or Path(filename).is_relative_to(
        project.resolve()
    )
    return (
        inside
        and not _is_ours(filename)
        and not any(part in _LIBRARY_FOLDERS for part in Path(filename).parts)
    )


def _is_of_a_library(filename: str) -> bool:
    return "/torch/" not in filename and not _is_ours(filename) and filename[:1] != "<"


def _is_ours(filename: str) -> bool:
    return Path(filename).is_relative_to(Path(__file__).parents[1])


def _relative(filename: str, project: Path) -> str:
    for root in (project, project.resolve()):
        if Path(filename).is_relative_to(root):
            return str(Path(filename).relative_to(root))
    for folder in _LIBRARY_FOLDERS:
        filename = filename.rpartition(f"/{folder}/")[2]
    return filename


def _nearest(name: str, owner: Any) -> str:
    public = [known for known in vars(owner) if not known.startswith("_")]
    near = nearest(name, public, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else ""


def _similar_files(file: Path, project: Path) -> str:
    siblings = (
        sorted(path.name for path in file.parent.glob("*.py")) if file.parent.is_dir() else []
    )
    near = nearest(file.name, siblings, count=2, cutoff=0.5)
    shown = [_relative(str(file.parent / name), project) for name in near]
    return f"did you mean {' or '.join(shown)}?" if shown else ""


def with_article(noun: str) -> str:
    """Return ``an int`` for ``int``."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
