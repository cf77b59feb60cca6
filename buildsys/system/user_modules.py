"""Modules of the user's code: ``FILE.py`` and ``package.module``, as Python imports them.

Nothing is imported here: the packages of a module may need torch. docs/user-code.md has the rules.
"""

import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from buildsys.system.files import is_below, path_of

MODULE = ":"  # ends a source that is a module, not a file
job_code: list[str] = []  # the setting `code` of the job that this process runs
_INIT = "__init__.py"
_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
REFERENCE_PATTERN = rf"^([^:]+\.py|{_NAME}):{_NAME}$"
_REFERENCE = re.compile(rf"(?P<place>[^:]+\.py|{_NAME}):(?P<name>{_NAME})")


def split_reference(text: str) -> tuple[str, str]:
    """Split FILE.py:NAME or package.module:NAME; anything else has no name."""
    match = _REFERENCE.fullmatch(text)
    return (match["place"], match["name"]) if match and text[-5:] != ".onnx" else (text, "")


def source_of(reference: str) -> str:
    """Name the source of FILE.py:NAME or package.module:NAME, with ``MODULE`` for the latter."""
    place, _ = split_reference(reference)
    return place if place.endswith(".py") else f"{place}{MODULE}"


class UserModule(NamedTuple):
    """A module of the user's code."""

    name: str  # to import it by; "" for a file whose path is no name
    file: str  # absolute, as is the next one
    root: str  # the folder of the module path that has it; "": Python finds it anyway


def code_roots(project: str, code: Sequence[str] = ()) -> list[str]:
    """List the folders to import from: those of the settings, src and the project."""
    has_src = os.path.isdir(f"{project}/src") and not os.path.isfile(f"{project}/src/{_INIT}")  # noqa: PTH112, PTH113
    names = (*code, *(["src"] if has_src else []), ".")
    return list(dict.fromkeys(path_of(project, name) for name in names))


def locate(
    place: str, project: str, code: Sequence[str] = (), path: Sequence[str] | None = None
) -> UserModule | None:
    """Locate FILE.py, which need not exist, or a module; None without such a module.

    ``path`` is the module path without the folders of scripts.
    """
    roots = code_roots(project, code)
    if place.endswith(".py"):
        return _of_file(path_of(project, place), roots, sys.path if path is None else path)
    name = place.removesuffix(MODULE)
    top, *rest = name.split(".")
    if file := _search(roots, [top, *rest]):
        levels = len(rest) + (2 if file.endswith(f"/{_INIT}") else 1)
        return UserModule(name, file, str(Path(file).parents[levels - 1]))
    if rest and _search(roots, [top]):
        return None  # that package, which hides others, has no such module
    try:
        spec = find_spec(top)  # of a dotted name, it would import the packages
    except (ImportError, ValueError, AttributeError):  # other finders raise any of these
        spec = None
    if spec is None:
        return None
    folders = [*(spec.submodule_search_locations or ())]
    file = _search(folders, rest) if rest else spec.origin
    return UserModule(name, file, "") if file and os.path.isfile(file) else None  # noqa: PTH113


def _of_file(file: str, roots: Sequence[str], path: Sequence[str]) -> UserModule:
    """Find the package root of a file, else the nearest folder above that is imported from."""
    folder = root = os.path.dirname(file)  # noqa: PTH120
    while root not in (*roots, os.sep) and os.path.isfile(f"{root}/{_INIT}"):  # noqa: PTH113
        root = os.path.dirname(root)  # noqa: PTH120
    if root == folder:
        above = [entry for entry in (*roots, *path) if entry and is_below(folder, entry)]
        root = max(above, key=len, default=folder)
    parts = os.path.relpath(file, root).removesuffix(".py").split("/")
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    name = "" if any("." in part for part in parts) else ".".join(parts)
    return UserModule(name, file, root)


def _search(folders: Sequence[str], names: Sequence[str]) -> str | None:
    """Find the file of a module as the import system does, in packages with and without files."""
    name, *rest = names
    portions = []
    for folder in folders:
        path = f"{folder}/{name}"
        if os.path.isfile(f"{path}/{_INIT}"):  # noqa: PTH113
            return _search([path], rest) if rest else f"{path}/{_INIT}"
        if os.path.isfile(f"{path}.py"):  # noqa: PTH113
            return None if rest else f"{path}.py"
        if os.path.isdir(path):  # noqa: PTH112
            portions.append(path)
    return _search(portions, rest) if rest and portions else None
