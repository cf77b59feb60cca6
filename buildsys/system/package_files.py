"""Identity of installed distributions by their files, not only by version.

The RECORD of a distribution lists its files with their digests. Its part for modules and libraries
is the identity: equal for the same wheel on every machine, other for another wheel of the same
version. An edit in site-packages changes the identity, too: the stamps of all modules are compared
(4 µs each), and if one differs all modules are read again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.system.files import Stamp, stamp
from buildsys.system.versions import ABSENT, builds_of, distribution_folders

if TYPE_CHECKING:
    from buildsys.system.files import TextCache

_SCHEMA = "package/2"
_Record = dict[str, list[str]]  # module -> digest and size as in RECORD


def package_identities(
    names: Iterable[str], path: tuple[str, ...], texts: TextCache
) -> dict[str, str]:
    """Identify each distribution that has a RECORD."""
    folders = distribution_folders(path)
    identities = {}
    for name in names:
        builds = [_identity(folders[build], texts) for build in builds_of(name) if build in folders]
        if any(builds):
            identities[name] = " + ".join(filter(None, builds))
    return identities


def _identity(folder: str, texts: TextCache) -> str:
    """Identify the distribution of a ``.dist-info`` folder; "" without modules in its RECORD."""
    record = f"{folder}/RECORD"
    record_stamp = stamp(record)
    if record_stamp is None:
        return ""
    name = f"{_SCHEMA}:{record}:{tuple(record_stamp)}"
    text = texts.get(name)
    if text is None:
        entries = _modules_in(record)
        digest = hashlib.sha256(json.dumps(sorted(entries.items())).encode()).hexdigest()[:32]
        # scripts, data or a link to an editable source have no identity
        texts.set(name, text := "\n".join((digest if entries else "", *entries)))
    digest, *modules = text.split("\n")
    if not digest:
        return ""
    root = os.path.dirname(folder)  # noqa: PTH120
    begun_ns = time.time_ns()
    stamps = {module: stamp(f"{root}/{module}") for module in modules}
    state = hashlib.sha256(repr([*stamps.values()]).encode()).hexdigest()
    identity = texts.get(f"{name}:{state}")
    if identity is None:
        edited = sorted(_edited(root, _modules_in(record), stamps, record_stamp))
        identity = digest
        if edited:
            identity = hashlib.sha256(json.dumps([digest, edited]).encode()).hexdigest()[:32]
        # a file written just now can be written again under the same times
        if all(seen is None or seen.is_settled(begun_ns) for seen in stamps.values()):
            texts.set(f"{name}:{state}", identity)
    return identity


def _modules_in(record: str) -> _Record:
    """List the modules and libraries in a RECORD, with digests and sizes.

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
    root: str, entries: _Record, stamps: Mapping[str, Stamp | None], record_stamp: Stamp
) -> Iterator[list[str]]:
    """Yield the modules different from RECORD, with their digests.

    A shared library is only read if its size or time differs: torch's have gigabytes.
    """
    for name, (digest, size) in entries.items():
        module = stamps[name]
        if module is None:
            yield [name, ABSENT]
            continue
        same_size = not size or size == str(module.size)
        if not name.endswith(".py") and same_size and module.mtime_ns <= record_stamp.mtime_ns:
            continue
        algorithm, _, expected = digest.partition("=")
        try:
            actual = hashlib.new(algorithm, Path(root, name).read_bytes()).digest()
        except (OSError, ValueError):
            yield [name, ABSENT]
            continue
        if base64.urlsafe_b64encode(actual).decode().rstrip("=") != expected:
            yield [name, actual.hex()]
