"""Cache of resolved manifests, checked by the stamps of their files.

A load from the cache imports neither pydantic nor yaml, and keeps each model as JSON text: a run
may need one of a thousand. A missing, broken or read-only cache costs only time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import zlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from buildsys.system.files import MAX_RESULT_BYTES, Stamp, read_limited, replace_file, stamp

SCHEMA = "buildsys/manifests/7"
_CODE = (  # that decides what a manifest means
    "errors.py",
    "manifest/**/*.py",
    "project/*.py",
    "stages/table.py",
    "stages/*/fields.py",
    "stages/*/checks.py",
    "backends/*/description.py",
    "backends/*/*options.py",
)


@dataclass(frozen=True)
class Entry:
    """The models of one file (name, JSON text) and the stamps of all files they depend on."""

    models: list[tuple[str, str]]
    stamps: dict[str, Stamp | None]


@dataclass
class Cache:
    """Entries by file, and the digests of weights with the stamps of their files."""

    entries: dict[str, Entry] = field(default_factory=dict)
    digests: dict[str, tuple[Stamp, str]] = field(default_factory=dict)

    def valid_entries(self, root: Path) -> dict[str, Entry]:
        """Select the entries with unchanged stamps."""
        start = f"{root}{os.sep}"  # joined as text: there may be thousands

        @cache  # most entries share some files
        def current(path: str) -> Stamp | None:
            return stamp(path if path.startswith(os.sep) else start + path)

        return {
            file: entry
            for file, entry in self.entries.items()
            if all(current(path) == before for path, before in entry.stamps.items())
        }


def read_cache(file: Path, configs: str) -> Cache:
    """Read the cache in ``file``, empty if broken or outdated."""
    try:
        checksum, _, body = read_limited(file, MAX_RESULT_BYTES).partition(b"\n")
        if int(checksum, 16) != zlib.crc32(body):
            return Cache()
        stored = json.loads(body)
        if stored["written_by"] != _writer(configs):
            return Cache()
        return Cache(
            {
                name: Entry(
                    models, {path: state and Stamp(*state) for path, state in stamps.items()}
                )
                for name, (models, stamps) in stored["entries"].items()
            },
            {path: (Stamp(*seen), sha256) for path, (seen, sha256) in stored["digests"].items()},
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Cache()


def write_cache(file: Path, configs: str, cache: Cache) -> None:
    """Replace the cache; without effect if it cannot be written."""
    stored = {
        "written_by": _writer(configs),
        "entries": {name: (entry.models, entry.stamps) for name, entry in cache.entries.items()},
        "digests": cache.digests,
    }
    body = json.dumps(stored, separators=(",", ":")).encode()
    with contextlib.suppress(OSError):
        replace_file(file, b"%08x\n" % zlib.crc32(body) + body)


def _writer(configs: str) -> Any:
    """Identify this code and pydantic."""
    package = Path(__file__).parents[1]
    code = sorted(file for pattern in _CODE for file in package.glob(pattern))
    spec = importlib.util.find_spec("pydantic")  # locates without importing
    version = Path(spec.origin).with_name("version.py") if spec and spec.origin else package
    writer = [SCHEMA, configs, sys.version_info[:3], *map(stamp, (*code, version))]
    return json.loads(json.dumps(writer))
