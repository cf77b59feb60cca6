"""Merging of a manifest with extended files and engine presets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from buildsys.errors import ManifestError
from buildsys.manifest.problem import Problem, expected, show_value, suggest, suggest_file
from buildsys.manifest.schema.network import DATA_KINDS
from buildsys.manifest.schema.source import REFERENCE_KINDS, SOURCE_KINDS
from buildsys.manifest.value_tree import FieldPath, ValueNode
from buildsys.manifest.workspace import Workspace

MAX_FILES = 100  # extended by one manifest, directly or not
_KINDS: Mapping[FieldPath, tuple[str, ...]] = {
    ("source",): SOURCE_KINDS,
    ("source", "reference"): REFERENCE_KINDS,
}
Presets = Mapping[str, "ValueNode | None"]  # None: broken and already reported


def merge(base: ValueNode, override: ValueNode, path: FieldPath = ()) -> ValueNode:
    """Merge two maps member by member; anything else is replaced.

    A source or data of another kind replaces the whole map, and so does a weights file.
    """
    if not isinstance(base.value, dict) or not isinstance(override.value, dict):
        return override
    is_input = len(path) == 3 and path[::2] == ("inputs", "data")
    is_data = is_input or (len(path) == 3 and path[:2] == ("calibration", "data"))
    kinds = set(_KINDS.get(path, DATA_KINDS if is_data else ()))
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
                merged = merge(merged, layer.without("model", "extends"))
        return merge(merged, document.without("extends"))

    def _base_file(self, node: ValueNode, file: Path, users: tuple[Path, ...]) -> Path | Problem:
        name = node.value
        if not isinstance(name, str) or not name.strip() or "\0" in name:
            return Problem(node.origin, expected("the path of a manifest", name))
        path = Path(os.path.normpath(file.parent / name))
        folders = (self._workspace.root.resolve(), self._workspace.configs.resolve())
        try:
            is_inside = any(path.resolve().is_relative_to(folder) for folder in folders)
        except (OSError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
            is_inside = False
        if Path(name).is_absolute() or not is_inside:
            hint = "paths are relative to this file"
            return Problem(node.origin, f"path {show_value(name)} leaves the project", hint)
        if path in users:
            names = " → ".join(user.name for user in (*users[users.index(path) :], path))
            return Problem(node.origin, f"the manifest extends itself: {names}", "break the cycle")
        self._files_left -= 1
        if self._files_left < 0:
            return Problem(
                node.origin,
                f"the manifest extends more than {MAX_FILES} files",
                "merge some of them",
            )
        if not self._workspace.exists(path):
            hint = suggest_file(path) or "paths are relative to this file"
            return Problem(node.origin, f"file {name} does not exist", hint)
        if path.is_dir():
            text = f"expected the path of a manifest, found the folder {show_value(name)}"
            return Problem(node.origin, text, "name a file in it")
        return path


def build_presets(document: ValueNode) -> tuple[dict[str, ValueNode | None], list[Problem]]:
    """Return every preset of engines.yaml, merged over its base."""
    if not isinstance(document.value, dict):
        return {}, [Problem(document.origin, expected("a map of engine presets", document.value))]
    presets: dict[str, ValueNode | None] = dict.fromkeys(document.value)
    problems: list[Problem] = []
    for name, node in document.items():
        if not isinstance(node.value, dict):
            problems.append(Problem(node.origin, expected("a map of engine fields", node.value)))
            continue
        if named := node.get("name"):
            text = "an engine preset is named by its key"
            problems.append(Problem(named.origin, text, "remove name", of_key=True))
        built = _build(document, name, (), problems)
        if built is not None:
            presets[name] = built.with_member("name", ValueNode(name, node.origin))
    return presets, problems


def _build(
    document: ValueNode, name: str, users: tuple[str, ...], problems: list[Problem]
) -> ValueNode | None:
    node = document.value[name]
    if not isinstance(node.value, dict):
        return None
    used = node.get("use")
    if used is None:
        return ValueNode(node.value, node.origin)
    if used.value in (*users, name):
        chain = " → ".join([*users, name, used.value])
        text = f"the engine preset uses itself: {chain}"
        problems.append(Problem(used.origin, text, "break the cycle"))
        return None
    if not _is_known(used, document.value, problems):
        return None
    base = _build(document, used.value, (*users, name), problems)
    return merge(base, node.without("use")) if base is not None else None


def resolve_engines(tree: ValueNode, presets: Presets | None) -> tuple[ValueNode, list[Problem]]:
    """Return the tree with every entry of ``engines`` written out.

    Entries with a broken preset are dropped, as it has been reported; ``presets`` is None if
    engines.yaml cannot be read.
    """
    engines = tree.get("engines")
    if engines is None or not isinstance(engines.value, list):
        return tree, []
    problems: list[Problem] = []
    complete = [_resolve_entry(entry, presets, problems) for entry in engines.value]
    kept = ValueNode([entry for entry in complete if entry is not None], engines.origin)
    return tree.with_member("engines", kept), problems


def _resolve_entry(
    entry: ValueNode, presets: Presets | None, problems: list[Problem]
) -> ValueNode | None:
    used = entry if isinstance(entry.value, str) else entry.get("use")
    if used is None:
        if isinstance(entry.value, dict):
            return entry
        what = "the name of an engine preset or a map of engine fields"
        problems.append(Problem(entry.origin, expected(what, entry.value)))
        return None
    if presets is None or not _is_known(used, presets, problems):
        return None
    preset = presets[used.value]
    if preset is None:
        return None
    preset = preset.with_member("name", ValueNode(used.value, used.origin))
    return preset if used is entry else merge(preset, entry.without("use"))


def _is_known(used: ValueNode, presets: Presets, problems: list[Problem]) -> bool:
    if isinstance(used.value, str) and used.value in presets:
        return True
    if isinstance(used.value, str):
        text = f"unknown engine preset {show_value(used.value)}"
        problems.append(Problem(used.origin, text, suggest(used.value, presets, what="presets")))
    else:
        problems.append(Problem(used.origin, expected("the name of an engine preset", used.value)))
    return False
