"""Checks of the project files named by a manifest."""

from __future__ import annotations

import ast
import stat
import symtable
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import EllipsisType
from typing import Any

from buildsys.manifest.checks.view import ManifestView
from buildsys.manifest.problem import Problems, show_value, suggest, suggest_file
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.workspace import Workspace

Pattern = tuple[str | EllipsisType, ...]
_DATA: tuple[Pattern, ...] = (
    ("inputs", ..., "data"),
    ("calibration", "data", ...),
    ("surgery", ..., "inputs", ..., "data"),
)
_FILES: tuple[Pattern, ...] = (
    ("source", "onnx"),
    ("source", "weights", "file"),
    *((*data, "npz") for data in _DATA),
    ("surgery", ..., "reference", "npz"),
    ("ops", ..., "library", "sources", ...),
    ("ops", ..., "library", "file"),
    ("ops", ..., "plugin", "python"),
    ("ops", ..., "plugin", "library"),
    ("symbolics", ..., "module"),
)
_FOLDERS: tuple[Pattern, ...] = tuple((*data, "images") for data in _DATA)
_CALLABLES: tuple[Pattern, ...] = (  # FILE.py:NAME
    ("source", "python"),
    *((*data, "python") for data in _DATA),
    ("surgery", ..., "function"),
    ("surgery", ..., "replace", "function"),
    ("surgery", ..., "reference", "python"),
    ("engines", ..., "network"),
    ("ops", ..., "function"),
    ("ops", ..., "function", ...),
    ("symbolics", ..., "function"),
    ("translations", ..., "function"),
)
_RELATIVE = "paths are relative to the project"


def file_problems(view: ManifestView, workspace: Workspace) -> Problems:
    """Yield missing files, folders and callables, and weights with another digest."""
    for path, name in _texts(view, _FOLDERS):
        folder = locate(workspace.root, name, workspace.links_into)
        if isinstance(folder, str):
            yield view.problem(path, folder, _RELATIVE)
        elif not workspace.exists(folder) or not folder.is_dir():
            hint = suggest_file(folder) or _RELATIVE
            yield view.problem(path, f"folder {name} does not exist", hint)
    for path, name in _texts(view, _FILES):
        yield from _file_problems(view, path, name, "", workspace)
    for path, text in _texts(view, _CALLABLES):
        file, _, callable_name = text.rpartition(":")
        yield from _file_problems(view, path, file or text, callable_name, workspace)


def locate(root: Path, path: str, links_into: Path) -> Path | str:
    """Return the absolute path of a project file, or a problem.

    It may be a link to another file of the project, or into ``links_into``.
    """
    if not path.strip() or "\0" in path:
        return f"{show_value(path)} is not a path"
    if Path(path).is_absolute():
        return f"path {show_value(path)} is absolute"
    try:
        real = (root / path).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        return f"path {show_value(path)} cannot be followed ({error})"
    if not any(real.is_relative_to(folder.resolve()) for folder in (root, links_into)):
        return f"path {show_value(path)} leaves the project"
    return root / path


def _texts(view: ManifestView, patterns: tuple[Pattern, ...]) -> Iterator[tuple[FieldPath, str]]:
    for pattern in patterns:
        for path, value in view.find(*pattern):
            if isinstance(value, str):
                yield path, value


def _file_problems(
    view: ManifestView, path: FieldPath, name: str, callable_name: str, workspace: Workspace
) -> Problems:
    file = locate(workspace.root, name, workspace.links_into)
    if isinstance(file, str):
        yield view.problem(path, file, _RELATIVE)
    elif not workspace.exists(file):
        yield view.problem(path, f"file {name} does not exist", suggest_file(file) or _RELATIVE)
    elif not stat.S_ISREG(file.stat().st_mode):
        yield view.problem(path, f"{name} is not a regular file")
    else:
        try:
            if callable_name and (found := _missing_callable(name, file, callable_name)):
                yield view.problem(path, *found)
            sha256 = view.get(*path[:-1], "sha256") if path[-1] == "file" else None
            if isinstance(sha256, str) and (digest := workspace.sha256(file)) != sha256:
                text = f"the SHA-256 digest of {name} is {digest}"
                hint = "replace the file, or update sha256"
                yield view.problem((*path[:-1], "sha256"), text, hint)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            yield view.problem(path, f"cannot read {name}: {reason}")


def _missing_callable(name: str, file: Path, callable_name: str) -> tuple[str, str] | None:
    """Return problem and hint for a name missing from a Python file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in user code are not our business
            source: Any = file.read_bytes()  # not text: a file may declare its encoding
            symbols = symtable.symtable(source, name, "exec").get_symbols()
            nodes = ast.walk(ast.parse(source))
            star = any(isinstance(node, ast.alias) and node.name == "*" for node in nodes)
    except SyntaxError as error:
        return f"{name}:{error.lineno or 1}: {error.msg}", ""
    except (ValueError, RecursionError, MemoryError) as error:
        return f"cannot parse {name}: {error}", ""
    wanted = callable_name.partition(".")[0]
    defined = sorted(s.get_name() for s in symbols if s.is_assigned() or s.is_imported())
    if star or wanted in defined or "__getattr__" in defined:  # these may provide any name
        return None
    return f"{name} does not define {wanted}", suggest(wanted, defined, what="defined")
