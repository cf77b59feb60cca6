"""Checks of the project files named by a manifest."""

from __future__ import annotations

import ast
import re
import stat
import symtable
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import EllipsisType
from typing import Any

from buildsys.manifest.command_templates import reference_of
from buildsys.manifest.problem import Problems, expected, show_value, suggest, suggest_file
from buildsys.manifest.schema.base import VARIABLE_PATTERN
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView
from buildsys.manifest.workspace import Workspace
from buildsys.system.files import Stamp, sha256_of, stamp
from buildsys.system.weight_names import HUB, INDEX_SUFFIX, parse_hub_name

Pattern = tuple[str | EllipsisType, ...]
_DATA: tuple[Pattern, ...] = (
    ("inputs", ..., "data"),
    ("calibration", "data", ...),
    ("surgery", ..., "inputs", ..., "data"),
)
_SOURCES: tuple[Pattern, ...] = (("source",), ("source", "reference"))
_FILES: tuple[Pattern, ...] = (
    *((*source, "onnx") for source in _SOURCES),
    *((*source, "weights", "file") for source in _SOURCES),
    *((*source, "config") for source in _SOURCES),
    *((*source, "exported_program") for source in _SOURCES),
    *((*data, "npz") for data in _DATA),
    ("surgery", ..., "reference", "npz"),
    ("ops", ..., "library", "sources", ...),
    ("ops", ..., "library", "file"),
    ("ops", ..., "plugin", "python"),
    ("ops", ..., "plugin", "library"),
    ("symbolics", ..., "module"),
    ("outputs", ..., "labels", "file"),
)
_FOLDERS: tuple[Pattern, ...] = (
    *((*source, "checkpoint") for source in _SOURCES),
    *((*data, "images") for data in _DATA),
)
_CALLABLES: tuple[Pattern, ...] = (  # FILE.py:NAME
    *((*source, "python") for source in _SOURCES),
    ("source", "tensorrt"),
    ("source", "reference", "numpy"),
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
_OF_COMMANDS: tuple[Pattern, ...] = (("commands", ..., "inputs", ...),)
_ON_HUB = tuple(
    (*source, *field)
    for source in _SOURCES
    for field in (("weights", "file"), ("config",), ("checkpoint",))
)
_RELATIVE = "paths are relative to the project"


def file_problems(view: ManifestView, workspace: Workspace) -> Problems:
    """Yield missing files, folders and callables, and weights with another digest."""
    inputs = [item for item in _texts(view, _OF_COMMANDS) if reference_of(item[1]) is None]
    others = (*_texts(view, (("reads", ...),)), *inputs)
    declared = (item for item in others if item[1].endswith("/"))
    for path, name in (*_texts(view, _FOLDERS), *declared):
        if _is_on_hub(path, name):
            yield from _hub_problems(view, path, name)
            continue
        folder = workspace.locate(name)
        if isinstance(folder, str):
            yield view.problem(path, folder, _RELATIVE)
        elif not workspace.exists(folder) or not folder.is_dir():
            hint = suggest_file(folder) or _RELATIVE
            yield view.problem(path, f"folder {name} does not exist", hint)
    for path, name in _texts(view, (("reads", ...),)):
        if name.startswith("$"):
            if not re.fullmatch(VARIABLE_PATTERN, name[1:]):
                yield view.problem(
                    path,
                    f"{show_value(name)} names no environment variable",
                    "write $NAME, with letters, digits and _",
                )
        elif not name.endswith("/"):
            yield from _file_problems(view, path, name, "", workspace)
    for path, name in inputs:
        if not name.endswith("/"):
            yield from _file_problems(view, path, name, "", workspace)
    for path, name in _texts(view, _FILES):
        if _is_on_hub(path, name):
            yield from _hub_problems(view, path, name)
            continue
        file, _, made_by = name.rpartition(":") if ".py:" in name else (name, "", "")
        yield from _file_problems(view, path, file, made_by, workspace)
    for path, text in _texts(view, _CALLABLES):
        file, _, callable_name = text.rpartition(":")
        yield from _file_problems(view, path, file or text, callable_name, workspace)


def _is_on_hub(path: FieldPath, name: str) -> bool:
    return path in _ON_HUB and name.startswith(HUB)


def _hub_problems(view: ManifestView, path: FieldPath, name: str) -> Problems:
    parts, is_folder = parse_hub_name(name), path[-1] == "checkpoint"
    if parts is None or bool(parts.path) is is_folder:
        form = f"{HUB}OWNER/NAME@COMMIT" + ("" if is_folder else "/FILE")
        hint = "a commit has 40 hexadecimal digits; a branch or tag may move"
        yield view.problem(path, expected(form, name), hint)


def _texts(view: ManifestView, patterns: tuple[Pattern, ...]) -> Iterator[tuple[FieldPath, str]]:
    for pattern in (pattern for pattern in patterns if pattern[0] in view.data):
        for path, value in view.find(*pattern):
            if isinstance(value, str):
                yield path, value


def _file_problems(
    view: ManifestView, path: FieldPath, name: str, callable_name: str, workspace: Workspace
) -> Problems:
    file = workspace.locate(name)
    if isinstance(file, str):
        yield view.problem(path, file, _RELATIVE)
    elif not workspace.exists(file):
        yield view.problem(path, f"file {name} does not exist", suggest_file(file) or _RELATIVE)
    elif not stat.S_ISREG(file.stat().st_mode):
        yield view.problem(path, f"{name} is not a regular file", "name a regular file")
    else:
        try:
            if callable_name and (missing := _missing_callable(name, file, callable_name)):
                yield view.problem(path, *missing)
            # that of an index includes its shards, which the stage reads
            is_whole = path[-1] == "file" and not name.endswith(INDEX_SUFFIX)
            sha256 = view.get(*path[:-1], "sha256") if is_whole else None
            if isinstance(sha256, str) and (digest := sha256_of(file)) != sha256:
                text = f"the SHA-256 digest of {name} is {digest}"
                hint = "replace the file, or update sha256"
                yield view.problem((*path[:-1], "sha256"), text, hint)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            yield view.problem(path, f"cannot read {name}: {reason}", "check its permissions")


def _missing_callable(name: str, file: Path, callable_name: str) -> tuple[str, str] | None:
    """Check for a name missing from a Python file."""
    names, problem = _names_in(name, file, stamp(file))
    if problem:
        return problem, ""
    first = callable_name.partition(".")[0]
    if not {"*", "__getattr__", first}.isdisjoint(names):  # the first two may provide any name
        return None
    return f"{name} does not define {first}", suggest(first, names, what="defined")


@lru_cache(maxsize=1000)  # many manifests may name callables of one file
def _names_in(name: str, file: Path, stamp: Stamp) -> tuple[tuple[str, ...], str]:  # noqa: ARG001
    """List a Python file's global names (``*``: star import); return them and any problem."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in user code are not our business
            source: Any = file.read_bytes()  # not text: a file may declare its encoding
            symbols = symtable.symtable(source, name, "exec").get_symbols()
            nodes = ast.walk(ast.parse(source))
            star = any(isinstance(node, ast.alias) and node.name == "*" for node in nodes)
    except SyntaxError as error:
        return (), f"{name}:{error.lineno or 1}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return (), f"cannot parse {name}: {error}"
    names = sorted(s.get_name() for s in symbols if s.is_assigned() or s.is_imported())
    return (*names, *("*" * star)), ""
