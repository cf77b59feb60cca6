"""Layers of a manifest: extended files and engine presets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from buildsys.errors import ManifestError
from buildsys.manifest.problem import expected, show_value, suggest, suggest_file
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
Errors = list[ManifestError]


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
    """The files extended by one manifest, and errors in them."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._files_left = MAX_FILES
        self.errors: Errors = []

    def read(self, file: Path, users: tuple[Path, ...] = ()) -> ValueNode:
        """Merge a file over its ``extends``; ``users`` are the files that led to this one.

        Raises: ManifestError: the file cannot be read or is not a map.
        """
        document = self._workspace.document(file)
        if not isinstance(document.value, dict):
            raise document.error(expected("a map of manifest fields", document.value))
        merged = ValueNode({}, document.origin)
        extends = document.get("extends")
        names = extends.value if extends and isinstance(extends.value, list) else [extends]
        for name in filter(None, names):
            try:
                layer = self.read(self._base_file(name, file, (*users, file)), (*users, file))
                merged = merge(merged, layer.without("model", "extends"))
            except ManifestError as error:
                self.errors.append(error)
        return merge(merged, document.without("extends"))

    def _base_file(self, node: ValueNode, file: Path, users: tuple[Path, ...]) -> Path:
        """Find an extended file. Raises: ManifestError."""
        name, hint = node.value, "paths are relative to this file"
        if not isinstance(name, str) or not name.strip() or "\0" in name:
            raise node.error(expected("the path of a manifest", name))
        located = self._workspace.locate(name, file.parent)
        if isinstance(located, str):
            raise node.error(located, hint)
        path = Path(os.path.normpath(located))
        if path in users:
            chain = " → ".join(user.name for user in (*users[users.index(path) :], path))
            raise node.error(f"the manifest extends itself: {chain}", "break the cycle")
        self._files_left -= 1
        if self._files_left < 0:
            text = f"the manifest extends more than {MAX_FILES} files"
            raise node.error(text, "merge some of them")
        if not self._workspace.exists(path):
            raise node.error(f"file {name} does not exist", suggest_file(path) or hint)
        if path.is_dir():
            text = f"expected the path of a manifest, found the folder {show_value(name)}"
            raise node.error(text, "name a file in it")
        return path


def build_presets(document: ValueNode) -> tuple[dict[str, ValueNode | None], Errors]:
    """Merge every preset of engines.yaml over its base."""
    if not isinstance(document.value, dict):
        return {}, [document.error(expected("a map of engine presets", document.value))]
    presets: dict[str, ValueNode | None] = dict.fromkeys(document.value)
    errors: Errors = []
    for name, node in document.items():
        if not isinstance(node.value, dict):
            errors.append(node.error(expected("a map of engine fields", node.value)))
            continue
        if own_name := node.get("name"):
            text = "an engine preset is named by its key"
            errors.append(own_name.error(text, "remove name", of_key=True))
        preset = _preset(document, name, (), errors)
        if preset is not None:
            presets[name] = preset.with_member("name", ValueNode(name, node.origin))
    return presets, errors


def _preset(
    document: ValueNode, name: str, users: tuple[str, ...], errors: Errors
) -> ValueNode | None:
    node = document.value[name]
    if not isinstance(node.value, dict):
        return None
    use = node.get("use")
    if use is None:
        return ValueNode(node.value, node.origin)
    if use.value in (*users, name):
        chain = " → ".join([*users, name, use.value])
        errors.append(use.error(f"the engine preset uses itself: {chain}", "break the cycle"))
        return None
    if not _is_preset(use, document.value, errors):
        return None
    base = _preset(document, use.value, (*users, name), errors)
    return merge(base, node.without("use")) if base is not None else None


def resolve_engines(tree: ValueNode, presets: Presets | None) -> tuple[ValueNode, Errors]:
    """Write out every entry of ``engines``.

    Entries with a broken preset are dropped, as it has been reported; ``presets`` is None if
    engines.yaml cannot be read.
    """
    engines = tree.get("engines")
    if engines is None or not isinstance(engines.value, list):
        return tree, []
    errors: Errors = []
    entries = [_resolve_entry(entry, presets, errors) for entry in engines.value]
    complete = ValueNode([entry for entry in entries if entry is not None], engines.origin)
    return tree.with_member("engines", complete), errors


def _resolve_entry(entry: ValueNode, presets: Presets | None, errors: Errors) -> ValueNode | None:
    use = entry if isinstance(entry.value, str) else entry.get("use")
    if use is None:
        if isinstance(entry.value, dict):
            return entry
        what = "the name of an engine preset or a map of engine fields"
        errors.append(entry.error(expected(what, entry.value)))
        return None
    if presets is None or not _is_preset(use, presets, errors):
        return None
    preset = presets[use.value]
    if preset is None:
        return None
    preset = preset.with_member("name", ValueNode(use.value, use.origin))
    return preset if use is entry else merge(preset, entry.without("use"))


def _is_preset(use: ValueNode, presets: Presets, errors: Errors) -> bool:
    """Check the name of a preset."""
    if not isinstance(use.value, str):
        errors.append(use.error(expected("the name of an engine preset", use.value)))
    elif use.value not in presets:
        text = f"unknown engine preset {show_value(use.value)}"
        errors.append(use.error(text, suggest(use.value, presets, what="presets")))
    else:
        return True
    return False
