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
from pathlib import Path
from typing import Any

from buildsys.system.backend_registry import our_backends
from buildsys.system.files import MAX_RESULT_BYTES, Stamp, read_limited, replace_file, stamp

SCHEMA = "buildsys/manifests/6"


@dataclass(frozen=True)
class Entry:
    """The models of one file (name, JSON text) and their dependencies."""

    models: list[list[str]]
    paths: list[str]


@dataclass
class Cache:
    """Entries by file, and the stamps of their dependencies."""

    entries: dict[str, Entry] = field(default_factory=dict)
    stamps: dict[str, Stamp | None] = field(default_factory=dict)
    digests: dict[str, tuple[Stamp, str]] = field(default_factory=dict)

    def valid_entries(self, root: Path) -> dict[str, Entry]:
        """Return the entries with unchanged stamps."""
        start = f"{root}{os.sep}"  # joined as text: there may be thousands
        unchanged = {
            path
            for path, known in self.stamps.items()
            if stamp(path if path.startswith(os.sep) else start + path) == known
        }
        return {
            file: entry for file, entry in self.entries.items() if unchanged.issuperset(entry.paths)
        }


def read_cache(file: Path, configs: str) -> Cache:
    """Return the cache in ``file``, empty if broken or outdated."""
    try:
        checksum, _, body = read_limited(file, MAX_RESULT_BYTES).partition(b"\n")
        if int(checksum, 16) != zlib.crc32(body):
            return Cache()
        stored = json.loads(body)
        if stored["written_by"] != _writer(configs):
            return Cache()
        return Cache(
            {name: Entry(*entry) for name, entry in stored["entries"].items()},
            {path: known and Stamp(*known) for path, known in stored["stamps"].items()},
            {path: (Stamp(*known), digest) for path, (known, digest) in stored["digests"].items()},
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Cache()


def write_cache(file: Path, configs: str, cache: Cache) -> None:
    """Replace the cache; without effect if it cannot be written."""
    stored = {
        "written_by": _writer(configs),
        "entries": {name: (entry.models, entry.paths) for name, entry in cache.entries.items()},
        "stamps": cache.stamps,
        "digests": cache.digests,
    }
    body = json.dumps(stored, separators=(",", ":")).encode()
    with contextlib.suppress(OSError):
        replace_file(file, b"%08x\n" % zlib.crc32(body) + body)


def _writer(configs: str) -> Any:
    """Return the identity of this code and of pydantic."""
    here = Path(__file__).parent
    code = sorted(here.rglob("*.py"))
    for name in our_backends():  # their fields
        modules = ("description", "options", "common_options")
        code += [here.parent / "backends" / name / f"{module}.py" for module in modules]
    found = importlib.util.find_spec("pydantic")  # locates without importing
    version = Path(found.origin).with_name("version.py") if found and found.origin else here
    stamps = [stamp(path) for path in (*code, here.parent / "errors.py", version)]
    writer = [SCHEMA, configs, sys.version_info[:3], stamps]
    return json.loads(json.dumps(writer))
