"""Merging of a manifest with the files named by ``extends``."""

from __future__ import annotations

import os
from pathlib import Path

from buildsys.errors import ManifestError
from buildsys.manifest.problem import Problem, expected, show_value, suggest_file
from buildsys.manifest.schema.network import DATA_KINDS, SOURCE_KINDS
from buildsys.manifest.value_tree import FieldPath, ValueNode
from buildsys.manifest.workspace import Workspace

MAX_FILES = 100  # extended by one manifest, directly or not

_NOT_INHERITED = ("model", "extends")


def merge(base: ValueNode, override: ValueNode, path: FieldPath = ()) -> ValueNode:
    """Merge two maps member by member; anything else is replaced.

    A source or data of another kind replaces the whole map, and so does a weights file.
    """
    if not isinstance(base.value, dict) or not isinstance(override.value, dict):
        return override
    is_input = len(path) == 3 and path[::2] == ("inputs", "data")
    is_data = is_input or (len(path) == 3 and path[:2] == ("calibration", "data"))
    kinds = set(SOURCE_KINDS if path == ("source",) else DATA_KINDS if is_data else ())
    chosen = kinds & override.value.keys()
    if chosen and chosen != kinds & base.value.keys():
        return override
    if path == ("source", "weights") and "file" in override.value:
        return override
    members = dict(base.value)
    for name, member in override.value.items():
        members[name] = merge(members[name], member, (*path, name)) if name in members else member
    return ValueNode(members, override.origin)


class Layers:
    """The files extended by one manifest, and problems with them."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._files_left = MAX_FILES
        self.problems: list[Problem | ManifestError] = []

    def read(self, file: Path, users: tuple[Path, ...] = ()) -> ValueNode:
        """Return a file merged over its ``extends``.

        ``users`` are the files that led to this one.
        Raises: ManifestError: the file cannot be read or is not a map.
        """
        document = self._workspace.document(file)
        if not isinstance(document.value, dict):
            problem = Problem(document.origin, expected("a map of manifest fields", document.value))
            raise self._workspace.errors([problem])[0]
        merged = ValueNode({}, document.origin)
        named = document.get("extends")
        entries = named.value if named and isinstance(named.value, list) else [named]
        for entry in filter(None, entries):
            base = self._base_file(entry, file, (*users, file))
            if isinstance(base, Problem):
                self.problems.append(base)
                continue
            try:
                layer = self.read(base, (*users, file))
            except ManifestError as error:
                self.problems.append(error)
            else:
                merged = merge(merged, layer.without(*_NOT_INHERITED))
        return merge(merged, document.without("extends"))

    def _base_file(self, node: ValueNode, file: Path, users: tuple[Path, ...]) -> Path | Problem:
        name = node.value
        if not isinstance(name, str) or not name.strip() or "\0" in name:
            return Problem(node.origin, expected("the path of a manifest", name))
        path = Path(os.path.normpath(file.parent / name))
        inside = (self._workspace.root, self._workspace.configs)
        if Path(name).is_absolute() or not any(_is_inside(path, folder) for folder in inside):
            hint = "paths are relative to this file"
            return Problem(node.origin, f"path {show_value(name)} leaves the project", hint)
        if path in users:
            names = " → ".join(user.name for user in (*users[users.index(path) :], path))
            return Problem(node.origin, f"the manifest extends itself: {names}", "break the cycle")
        self._files_left -= 1
        if self._files_left < 0:
            return Problem(node.origin, f"the manifest extends more than {MAX_FILES} files")
        if not self._workspace.exists(path):
            hint = suggest_file(path) or "paths are relative to this file"
            return Problem(node.origin, f"file {name} does not exist", hint)
        if path.is_dir():
            text = f"expected the path of a manifest, found the folder {show_value(name)}"
            return Problem(node.origin, text)
        return path


def _is_inside(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False
