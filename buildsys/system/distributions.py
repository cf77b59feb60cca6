"""Installed distributions of the modules imported by a user's file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import util
from importlib.machinery import PathFinder
from inspect import getmodulename
from pathlib import Path
from typing import NamedTuple

from buildsys.system.text_cache import TextCache
from buildsys.system.versions import installed_versions, normalized

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_EXTRA = re.compile(r";.*\bextra\b")
_LIBRARY_FOLDERS = ("site-packages", "dist-packages")


class Provider(NamedTuple):
    """The provider of a module: distributions, or a folder outside all libraries."""

    versions: Mapping[str, str]
    root: str | None


def distributions_of(
    modules: Iterable[str],
    texts: TextCache,
    *,
    known: Collection[str],
    path: tuple[str, ...] | None = None,
) -> list[str]:
    """Return the distributions of top-level ``modules`` and their requirements.

    Requirements of ``known`` distributions are not followed: stages name those they depend on.
    ``path`` is the module path of another interpreter.
    """
    versions = installed_versions(path)
    state = hashlib.sha256(json.dumps(sorted(versions.items())).encode()).hexdigest()
    found: dict[str, None] = {}
    for module in sorted(set(modules)):
        name = f"libraries/1:{state}:{'+'.join(sorted(known))}:{module}"
        text = texts.get(name)
        if text is None:
            providers = _providers(module, path)
            text = json.dumps(list(_with_requirements(providers, known, versions, path)))
            texts.set(name, text)
        found.update(dict.fromkeys(json.loads(text)))
    return list(found)


def source_root(module: str, path: tuple[str, ...] | None = None) -> str | None:
    """Return the folder of a module outside all libraries, or None."""
    try:
        spec = util.find_spec(module) if path is None else PathFinder.find_spec(module, list(path))
    except (ImportError, ValueError, AttributeError):  # third-party finders raise any of these
        return None
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    file = Path(spec.origin)
    if any(part in _LIBRARY_FOLDERS for part in file.parts):
        return None
    return str(file.parent.parent if spec.submodule_search_locations else file.parent)


def _providers(module: str, path: tuple[str, ...] | None) -> list[str]:
    """Return the distributions of a top-level module.

    metadata.packages_distributions misses many before Python 3.11.
    """
    if normalized(module) in installed_versions(path):
        return [normalized(module)]
    from importlib import metadata  # slow, but needed only once per environment and module

    found = set()
    every = metadata.distributions() if path is None else metadata.distributions(path=list(path))
    for distribution in every:
        declared = (distribution.read_text("top_level.txt") or "").split()
        files = () if declared else distribution.files or ()
        tops = (f.parts[0] if len(f.parts) > 1 else getmodulename(f) or "" for f in files)
        if module in declared or module in tops:
            found.add(normalized(distribution.metadata["Name"]))
    return sorted(found)


def _with_requirements(
    names: list[str],
    known: Collection[str],
    versions: Collection[str],
    path: tuple[str, ...] | None,
) -> Iterator[str]:
    from importlib import metadata

    seen: set[str] = set()
    waiting = list(reversed(names))
    while waiting:
        name = waiting.pop()
        if name in seen or name not in versions:
            continue
        seen.add(name)
        yield name
        if name in known:
            continue
        if path is None:
            requires = metadata.requires(name)
        else:
            found = next(iter(metadata.distributions(name=name, path=list(path))), None)
            requires = found.requires if found is not None else None
        matches = (_REQUIREMENT.match(line) for line in requires or () if not _EXTRA.search(line))
        waiting += sorted((normalized(match[1]) for match in matches if match), reverse=True)
