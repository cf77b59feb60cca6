"""Which installed distributions stand behind the modules that a user's file imports."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import util
from importlib.machinery import PathFinder
from inspect import getmodulename
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from buildsys.system.versions import installed_versions, normalized

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_EXTRA = re.compile(r";.*\bextra\b")
_LIBRARY_FOLDERS = ("site-packages", "dist-packages")


class Memo(Protocol):
    """Remembers texts by name."""

    def get(self, digest: str) -> str | None:
        """Return what was stored under a name."""

    def set(self, digest: str, imports: str) -> None:
        """Store a text."""


class Provider(NamedTuple):
    """What stands behind a module: distributions with their versions, and its folder outside of all libraries."""

    versions: Mapping[str, str]
    root: str | None


def distributions_of(
    modules: Iterable[str],
    memo: Memo,
    *,
    known: Collection[str],
    path: tuple[str, ...] | None = None,
) -> list[str]:
    """Return the distributions that bring ``modules`` (top-level names), and those that these require.

    What a distribution of ``known`` requires is not followed: stages name what matters of it themselves. ``path`` is
    that of another interpreter.
    """
    versions = installed_versions(path)
    mark = hashlib.sha256(json.dumps(sorted(versions.items())).encode()).hexdigest()
    found: dict[str, None] = {}
    for module in sorted(set(modules)):
        name = f"libraries/1:{mark}:{'+'.join(sorted(known))}:{module}"
        text = memo.get(name)
        if text is None:
            found_here = _with_requirements(_providers(module, path), known, versions, path)
            memo.set(name, text := json.dumps(list(found_here)))
        found.update(dict.fromkeys(json.loads(text)))
    return list(found)


def source_root(module: str, path: tuple[str, ...] | None = None) -> str | None:
    """Return the folder that a module outside all library folders is imported from, None where there is none."""
    try:
        spec = util.find_spec(module) if path is None else PathFinder.find_spec(module, list(path))
    except (
        ImportError,
        ValueError,
        AttributeError,
    ):  # a finder of somebody else's may raise anything of these
        return None
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    file = Path(spec.origin)
    if any(part in _LIBRARY_FOLDERS for part in file.parts):
        return None
    return str(file.parent.parent if spec.submodule_search_locations else file.parent)


def _providers(module: str, path: tuple[str, ...] | None) -> list[str]:
    if normalized(module) in installed_versions(path):
        return [normalized(module)]
    from importlib import metadata  # slow: once per environment and module

    every = metadata.distributions() if path is None else metadata.distributions(path=list(path))
    bringing = (found for found in every if module in _top_level(found))
    return sorted({normalized(found.metadata["Name"]) for found in bringing})


def _top_level(distribution: Distribution) -> set[str]:
    """Return the modules that a distribution brings; metadata.packages_distributions misses many before Python 3.11."""
    declared = distribution.read_text("top_level.txt")
    if declared:
        return set(declared.split())
    files = distribution.files or ()
    return {file.parts[0] if len(file.parts) > 1 else getmodulename(file) or "" for file in files}


def _with_requirements(
    names: list[str],
    known: Collection[str],
    versions: Collection[str],
    path: tuple[str, ...] | None,
) -> Iterator[str]:
    seen: set[str] = set()
    waiting = list(reversed(names))
    while waiting:
        name = waiting.pop()
        if name in seen or name not in versions:
            continue
        seen.add(name)
        yield name
        if name not in known:
            requires = _requires(name, path)
            matches = (_REQUIREMENT.match(line) for line in requires if not _EXTRA.search(line))
            waiting += sorted((normalized(match[1]) for match in matches if match), reverse=True)


def _requires(name: str, path: tuple[str, ...] | None) -> list[str]:
    from importlib import metadata

    if path is None:
        return metadata.requires(name) or []
    found = next(iter(metadata.distributions(name=name, path=list(path))), None)
    return (found.requires or []) if found is not None else []
