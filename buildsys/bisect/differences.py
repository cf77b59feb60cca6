"""Differences of two states of a project: manifest fields and files, and any mixture of them."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.errors import ManifestError
from buildsys.execution.stale_reasons import StaleReason, part_reasons
from buildsys.manifest.value_tree import ValueNode, ValueOrigin
from buildsys.manifest.workspace import Workspace
from buildsys.manifest.yaml_reader import read_yaml
from buildsys.project.load import Project, ResolvedModel
from buildsys.project.resolve import Resolver

Parts = Mapping[str, Mapping[str, str]]  # target -> parts of its key
_ABSENT = object()
_FILES = ("source", "weights", "read")  # kinds of key parts with the content of a user's file
_ENVIRONMENT = ("tool", "device", "env")
_NAMED = ("engines", "commands")  # lists whose entries have names


class Field(NamedTuple):
    """A field of the manifest that differs; its values are None if unset."""

    path: tuple[str, ...]
    old: Any
    new: Any

    @property
    def reason(self) -> StaleReason:
        """The difference as `buildsys explain` has it."""
        old, new = (None if v is _ABSENT else json.dumps(v) for v in (self.old, self.new))
        path = ("engine", *self.path[2:]) if self.path[0] == "engines" else self.path
        return StaleReason("config", ".".join(path), old, new)


class UserFile(NamedTuple):
    """A file of the project that differs."""

    name: str
    kind: str
    old: str | None  # digests
    new: str | None

    @property
    def reason(self) -> StaleReason:
        """The difference as `buildsys explain` has it."""
        return StaleReason(self.kind, self.name, self.old, self.new)


Difference = Field | UserFile


class State(NamedTuple):
    """A tree of files with the resolved manifest of one model."""

    project: Project  # at the root of the tree
    manifest: Mapping[str, Any]
    is_own: bool = False  # a manifest as a user wrote it, not a mixture


def field_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Field]:
    """List the smallest parts of two resolved manifests that differ."""
    return list(_differences((), _by_name(old), _by_name(new)))


def _differences(path: tuple[str, ...], old: Any, new: Any) -> Iterator[Field]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            yield from _differences((*path, name), old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif old is _ABSENT or new is _ABSENT or json.dumps(old) != json.dumps(new):
        yield Field(path, old, new)


def with_fields(manifest: Mapping[str, Any], fields: Iterable[Field]) -> dict[str, Any]:
    """Give some fields of a resolved manifest their new values."""
    changed = _by_name(manifest)
    for field in fields:
        *parents, name = field.path
        place = changed
        for parent in parents:
            place = place[parent]
        if field.new is _ABSENT:
            del place[name]
        else:
            place[name] = field.new
    return {k: [*v.values()] if k in _NAMED else v for k, v in changed.items()}


def _by_name(manifest: Mapping[str, Any]) -> dict[str, Any]:
    tree = copy.deepcopy(dict(manifest))
    return tree | {k: {entry["name"]: entry for entry in tree.get(k) or ()} for k in _NAMED}


def model_of(state: State) -> ResolvedModel:
    """Make the model of a state."""
    text = json.dumps(state.manifest, separators=(",", ":"))
    tree = ValueNode({}, ValueOrigin(Path(state.manifest["model"]), ()))
    return ResolvedModel(state.manifest["model"], "", text, lambda: tree)


def errors_of(state: State, folder: Path) -> dict[tuple[object, str], ManifestError]:
    """Check a resolved manifest as if a user had written it.

    There are errors even for a valid one, as it has the defaults of sections that it must not have.
    """
    configs, project = folder / "configs", state.project
    file = configs / "models" / "mixture.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    manifest = {k: v for k, v in state.manifest.items() if k != "toolchains"}
    file.write_text(json.dumps(manifest), encoding="utf-8")
    shared = project.configs / "project.yaml"
    settings = (read_yaml(shared, shared.read_bytes()) if shared.is_file() else None) or {}
    settings.pop("defaults", None)  # of the manifest, which has all values
    (configs / "project.yaml").write_text(json.dumps(settings), encoding="utf-8")
    workspace = Workspace(project.root, configs, folder, project.code)
    _, errors = Resolver(workspace).resolve(file)
    return {
        (error.key, error.problem): replace(error, file=Path("mixture"), line=None, column=None)
        for error in errors
    }


def file_differences(old: Parts, new: Parts, roots: tuple[Path, Path]) -> list[UserFile]:
    """List the user's files in the keys of a chain that differ between two trees."""
    differing: dict[str, UserFile] = {}
    for target in {**old, **new}:
        before, after = old.get(target, {}), new.get(target, {})
        for label in sorted(before.keys() | after.keys()):
            kind, _, name = label.partition(":")
            values = [parts.get(label, "").partition(" ")[0] or None for parts in (before, after)]
            if kind not in _FILES or values[0] == values[1] or name.startswith(("$", "/", "…")):
                continue
            for file in _files_at(name, roots):
                if _content(roots[0] / file) != _content(roots[1] / file):
                    differing[file] = UserFile(file, kind, values[0], values[1])
    return [differing[name] for name in sorted(differing)]


def _files_at(name: str, roots: Iterable[Path]) -> Iterator[str]:
    """Yield a file, or all below a folder."""
    for root in roots if name.endswith("/") else ():
        for path in filter(Path.is_file, (root / name).rglob("*")):
            yield path.relative_to(root).as_posix()
    if not name.endswith("/"):
        yield name


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def environment_differences(old: Parts, new: Parts) -> list[StaleReason]:
    """List libraries, devices and variables that differ between two builds of a chain."""
    reasons: dict[StaleReason, None] = {}
    for target in old.keys() & new.keys():
        both = [
            label
            for label in old[target].keys() & new[target].keys()
            if label.partition(":")[0] in _ENVIRONMENT
        ]
        sides = ({label: parts[target][label] for label in both} for parts in (old, new))
        reasons |= dict.fromkeys(part_reasons(*sides))
    return [*reasons]


class Mixture:
    """A temporary tree in which files of two trees are exchanged."""

    def __init__(self, base: Path, other: Path, names: Collection[str], backup: Path) -> None:
        """Prepare to change ``base``; ``backup`` keeps its files."""
        self._base, self._names = base, names
        self._sources = {False: backup, True: other}
        for name in names:
            _copy(base / name, backup / name)

    def write(self, others: Collection[str]) -> None:
        """Write ``others`` from the other tree, all remaining files from the base."""
        for name in self._names:
            _copy(self._sources[name in others] / name, self._base / name)


def _copy(source: Path, place: Path) -> None:
    """Copy a file over another one; remove it where there is no source."""
    place.unlink(missing_ok=True)
    if source.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
        place.chmod(source.stat().st_mode)
