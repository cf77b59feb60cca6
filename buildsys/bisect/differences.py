"""Differences of two states of a project: manifest fields and files, and any mixture of them."""

import copy
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.execution.stale_reasons import StaleReason, part_reasons

Parts = Mapping[str, Mapping[str, str]]  # target -> parts of its key
_FILES = ("source", "weights", "read")  # kinds of key parts with the content of a user's file
_ENVIRONMENT = ("tool", "device", "env")
_NAMED = ("engines", "commands")  # lists whose entries have names


class Difference(NamedTuple):
    """A field, a library or a file; values are JSON, versions or digests, None if absent."""

    reason: StaleReason  # as `buildsys explain` has it
    path: tuple[str, ...] = ()  # of a field
    library: tuple[str, str] = ("", "")  # toolchain, "" for our interpreter's, and name

    @property
    def file(self) -> str:
        """The name of a file, "" for others."""
        return "" if self.path or any(self.library) else self.reason.subject


def field_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """List the smallest parts of two resolved manifests that differ."""
    return list(_differences((), _by_name(old), _by_name(new)))


def _differences(path: tuple[str, ...], old: Any, new: Any) -> Iterator[Difference]:
    for name in {**old, **new}:
        place, values = (*path, name), [side.get(name) for side in (old, new)]
        if all(isinstance(value, Mapping) for value in values):
            yield from _differences(place, *values)
            continue
        texts = [json.dumps(side[name]) if name in side else None for side in (old, new)]
        if texts[0] != texts[1]:
            shown = ("engine", *place[2:]) if place[0] == "engines" else place
            yield Difference(StaleReason("config", ".".join(shown), *texts), place)


def with_fields(manifest: Mapping[str, Any], fields: Iterable[Difference]) -> dict[str, Any]:
    """Give some fields of a resolved manifest their new values."""
    changed = _by_name(manifest)
    for field in fields:
        *parents, name = field.path
        place = changed
        for parent in parents:
            place = place[parent]
        if field.reason.new is None:
            del place[name]
        else:
            place[name] = json.loads(field.reason.new)
    return {k: [*v.values()] if k in _NAMED else v for k, v in changed.items()}


def _by_name(manifest: Mapping[str, Any]) -> dict[str, Any]:
    tree = copy.deepcopy(dict(manifest))
    return tree | {k: {entry["name"]: entry for entry in tree.get(k) or ()} for k in _NAMED}


def files_of(parts: Parts) -> dict[str, tuple[str, str]]:
    """List the user's files and folders in keys, with kind and digest."""
    return {
        name: (kind, value.partition(" ")[0])
        for of_target in parts.values()
        for label, value in of_target.items()
        for kind, _, name in [label.partition(":")]
        if kind in _FILES and not name.startswith(("$", "/", "…"))
    }


def file_differences(old: Parts, new: Parts, roots: tuple[Path, Path]) -> list[Difference]:
    """List the user's files in the keys of a chain that differ between two trees."""
    before, after = files_of(old), files_of(new)
    differing: dict[str, Difference] = {}
    for name in before.keys() | after.keys():
        kind, was = before.get(name, ("", None))
        kind, now = after.get(name, (kind, None))
        for file in _files_at(name, roots) if was != now else ():
            if content_of(roots[0] / file) != content_of(roots[1] / file):
                differing[file] = Difference(StaleReason(kind, file, was, now))
    return [differing[name] for name in sorted(differing)]


def _files_at(name: str, roots: Iterable[Path]) -> Iterator[str]:
    """Yield a file, or all below a folder."""
    if not name.endswith("/"):
        yield name
        return
    for root in roots:
        for path in filter(Path.is_file, (root / name).rglob("*")):
            yield path.relative_to(root).as_posix()


def content_of(path: Path) -> bytes | None:
    """Read a file, None without one."""
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


def mix_files(
    names: Iterable[str], others: Collection[str], base: Path, other: Path, tree: Path
) -> None:
    """Write files into a tree: ``others`` from another one, all remaining from the base."""
    for name in names:
        copy_file((other if name in others else base) / name, tree / name)


def copy_file(source: Path, place: Path) -> None:
    """Copy a file over another one; remove it where there is no source."""
    place.unlink(missing_ok=True)
    if source.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)
