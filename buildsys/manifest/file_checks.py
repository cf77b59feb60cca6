"""Checks of the project files named by a manifest."""

from __future__ import annotations

import re
import symtable
import warnings
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import EllipsisType

from buildsys.manifest.command_templates import reference_of
from buildsys.manifest.problem import Problems, expected, show_value, suggest, suggest_file
from buildsys.manifest.schema.base import VARIABLE_PATTERN
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView, RefusedError
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
_SOURCE_FILES = ("onnx", "config", "exported_program", "python", "tensorrt", "numpy")
_FILES: tuple[Pattern, ...] = (  # FILE, FOLDER/, $VARIABLE, FILE.py:NAME or hf://…
    *((*source, kind) for source in _SOURCES for kind in _SOURCE_FILES),
    *((*source, "weights", "file") for source in _SOURCES),
    *((*data, kind) for data in _DATA for kind in ("npz", "python")),
    ("surgery", ..., "function"),
    ("surgery", ..., "replace", "function"),
    ("surgery", ..., "reference", ...),
    ("engines", ..., "network"),
    ("ops", ..., "function"),
    ("ops", ..., "function", ...),
    ("ops", ..., "library", "sources", ...),
    ("ops", ..., "library", "file"),
    ("ops", ..., "plugin", ...),
    ("symbolics", ..., "function"),
    ("symbolics", ..., "module"),
    ("translations", ..., "function"),
    ("outputs", ..., "labels", "file"),
    ("commands", ..., "inputs", ...),
    ("reads", ...),
)
_FOLDERS: tuple[Pattern, ...] = (
    *((*source, "checkpoint") for source in _SOURCES),
    *((*data, "images") for data in _DATA),
)
_RELATIVE = "paths are relative to the project"


def file_problems(view: ManifestView, workspace: Workspace) -> Problems:
    """Yield missing files, folders and callables, and weights with another digest."""
    for pattern in (*_FILES, *_FOLDERS):
        for path, name in view.find(*pattern):
            if not isinstance(name, str) or (path[0] == "commands" and reference_of(name)):
                continue
            with suppress(RefusedError):
                if path[0] == "source" and name.startswith(HUB):
                    yield from _hub_problems(view, path, name, is_folder=pattern in _FOLDERS)
                elif path[0] == "reads" and name.startswith("$"):
                    if not re.fullmatch(VARIABLE_PATTERN, name[1:]):
                        text = f"{show_value(name)} names no environment variable"
                        yield view.problem(path, text, "write $NAME, with letters, digits and _")
                else:
                    is_listed = path[0] in ("reads", "commands") and name.endswith("/")
                    kind = "folder" if pattern in _FOLDERS or is_listed else "file"
                    yield from _path_problems(view, path, name, kind, workspace)


def _hub_problems(view: ManifestView, path: FieldPath, name: str, *, is_folder: bool) -> Problems:
    parts = parse_hub_name(name)
    if parts is None or bool(parts.path) is is_folder:
        form = f"{HUB}OWNER/NAME@COMMIT" + ("" if is_folder else "/FILE")
        hint = "a commit has 40 hexadecimal digits; a branch or tag may move"
        yield view.problem(path, expected(form, name), hint)


def _path_problems(
    view: ManifestView, path: FieldPath, written: str, kind: str, workspace: Workspace
) -> Problems:
    name, _, callable_name = written.rpartition(":") if ".py:" in written else (written, "", "")
    place = workspace.locate(name)
    if isinstance(place, str):
        yield view.problem(path, place, _RELATIVE)
        return
    is_present = workspace.exists(place)
    if not is_present or not (place.is_dir() if kind == "folder" else place.is_file()):
        text = f"{kind} {name} does not exist" if not is_present else f"{name} is not a {kind}"
        yield view.problem(path, text, suggest_file(place) or _RELATIVE)
        return
    try:
        if callable_name and (missing := _missing_callable(name, place, callable_name)):
            yield view.problem(path, *missing)
        # the digest of an index includes its shards, which the stage reads
        is_whole = path[-1] == "file" and not written.endswith(INDEX_SUFFIX)
        sha256 = view.get(*path[:-1], "sha256") if is_whole else None
        if sha256 and (digest := sha256_of(place)) != sha256:
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
    source = file.read_bytes()  # not text: a file may declare its encoding
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in user code are not our business
            symbols = symtable.symtable(source, name, "exec").get_symbols()  # type: ignore[arg-type]
    except SyntaxError as error:
        return (), f"{name}:{error.lineno or 1}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return (), f"cannot parse {name}: {error}"
    names = sorted(s.get_name() for s in symbols if s.is_assigned() or s.is_imported())
    return (*names, *("*" * (b"import *" in source))), ""
