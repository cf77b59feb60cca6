"""Identity of installed distributions by their files, not only by version.

The RECORD of a distribution lists its files with their digests. Its part for modules and libraries
is the identity: equal for the same wheel on every machine, other for another wheel of the same
version. An edit in site-packages changes the identity, too: stamps are compared, and if one differs
all modules are read again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.system.files import Stamp, stamp
from buildsys.system.versions import ABSENT, builds_of, distribution_folders

if TYPE_CHECKING:
    from buildsys.system.text_cache import TextCache

_SCHEMA = "package/2"
# A stat takes 4 µs: of 2,450 modules of torch half as long as everything else in a run with nothing
# to do. Of a larger library its folders and the modules directly in its packages are looked at.
_MANY_MODULES = 250
_Record = dict[str, list[str]]  # module -> digest and size as in RECORD


def package_identities(
    names: Iterable[str], path: tuple[str, ...], texts: TextCache, *, thorough: bool = False
) -> dict[str, str]:
    """Return the identity of each distribution with a RECORD.

    ``thorough`` looks at every module even of a large distribution.
    """
    folders = distribution_folders(path)
    found = {}
    for name in names:
        identities = [
            _identity(folders[build], texts, thorough=thorough)
            for build in builds_of(name)
            if build in folders
        ]
        if any(identities):
            found[name] = " + ".join(filter(None, identities))
    return found


def _identity(folder: str, texts: TextCache, *, thorough: bool) -> str:
    """Return the identity of the distribution of a ``.dist-info`` folder, or ""."""
    record = f"{folder}/RECORD"
    of_record = stamp(record)
    if of_record is None:
        return ""
    name = f"{_SCHEMA}:{'all' if thorough else 'watched'}:{record}:{tuple(of_record)}"
    text = texts.get(name)
    if text is None:
        entries = _modules_in(record)
        digest = hashlib.sha256(json.dumps(sorted(entries.items())).encode()).hexdigest()[:32]
        # scripts, data or a link to an editable source have no identity
        paths = list(entries) if thorough else _watched(entries)
        texts.set(name, text := "\n".join((digest if entries else "", *paths)))
    digest, *paths = text.split("\n")
    if not digest:
        return ""
    root = os.path.dirname(folder)  # noqa: PTH120
    begun_ns = time.time_ns()
    state = _state(root, paths)
    known = texts.get(f"{name}:{state}")
    if known is None:
        entries = _modules_in(record)
        stamps = {each: stamp(f"{root}/{each}") for each in (*paths, *entries)}
        edited = sorted(_edited(root, entries, stamps, of_record))
        known = digest
        if edited:
            known = hashlib.sha256(json.dumps([digest, edited]).encode()).hexdigest()[:32]
        # a file written just now can be written again under the same times
        if all(each is None or each.is_settled(begun_ns) for each in stamps.values()):
            texts.set(f"{name}:{state}", known)
    return known


def _state(root: str, paths: Iterable[str]) -> str:
    """Return a digest of stamps, computed in every run."""
    found: list[tuple[int, ...]] = []
    for path in paths:
        try:
            at = os.stat(f"{root}/{path}")  # noqa: PTH116
        except OSError:
            found.append(())
        else:
            found.append((at.st_mtime_ns, at.st_ctime_ns, at.st_size))
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _watched(modules: Collection[str]) -> list[str]:
    """Return the modules to check in every run, and other folders.

    Whatever replaces or adds a file changes its folder: pip, ``sed -i``, most editors.
    """
    if len(modules) <= _MANY_MODULES:
        return list(modules)
    top = [module for module in modules if module.count("/") <= 1]
    return [*top, *sorted({os.path.dirname(module) for module in modules} - {""})]  # noqa: PTH120


def _modules_in(record: str) -> _Record:
    """Return the modules and libraries in a RECORD, with digests and sizes.

    Scripts name their interpreter, and metadata its installer: they differ between machines.
    """
    entries: _Record = {}
    for line in Path(record).read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, rest = line.rpartition(",")
        name, _, digest = name.rpartition(",")
        is_module = name.endswith((".py", ".pyd")) or ".so" in name.rpartition("/")[2]
        if is_module and digest and not name.startswith(("../", "/", '"')):
            entries[name] = [digest, rest]
    return entries


def _edited(
    root: str, entries: _Record, stamps: Mapping[str, Stamp | None], of_record: Stamp
) -> Iterator[list[str]]:
    """Yield the modules different from RECORD, with their digests.

    A shared library is only read if its size or time differs: torch's have gigabytes.
    """
    for name, (digest, size) in entries.items():
        found = stamps[name]
        if found is None:
            yield [name, ABSENT]
            continue
        same_size = not size or size == str(found.size)
        if not name.endswith(".py") and same_size and found.mtime_ns <= of_record.mtime_ns:
            continue
        algorithm, _, expected = digest.partition("=")
        try:
            actual = hashlib.new(algorithm, Path(root, name).read_bytes()).digest()
        except (OSError, ValueError):
            yield [name, ABSENT]
            continue
        if base64.urlsafe_b64encode(actual).decode().rstrip("=") != expected:
            yield [name, actual.hex()]
