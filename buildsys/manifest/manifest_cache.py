"""The resolved manifests of the last load, valid while every file that they came from is in the same state.

A load from the cache imports neither pydantic nor yaml, and takes each model as the JSON text that it was kept as: of a
thousand models a run may need one. A cache that is missing, broken or cannot be written costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildsys.system.files import Stamp, replace_file, stamp

SCHEMA = "buildsys/manifests/2"


@dataclass(frozen=True)
class Entry:
    """What one file came to: its models (name, JSON text), and the paths that this depends on."""

    models: list[tuple[str, str]]
    depends: list[str]


@dataclass
class Cache:
    """Entries by file, with the state that each path they depend on was in."""

    entries: dict[str, Entry] = field(default_factory=dict)
    states: dict[str, Stamp | None] = field(default_factory=dict)
    digests: dict[str, tuple[Stamp, str]] = field(default_factory=dict)

    def valid(self, root: Path) -> dict[str, Entry]:
        """Return the entries whose paths are all in the state that they had."""
        start = f"{root}{os.sep}"  # joined as text: there may be thousands
        same = {
            path for path, state in self.states.items() if stamp(_absolute(start, path)) == state
        }
        return {
            file: entry for file, entry in self.entries.items() if same.issuperset(entry.depends)
        }


def read_cache(file: Path, configs: str) -> Cache:
    """Return the cache in ``file``; an empty one if it is broken or was written by other code."""
    try:
        content = file.read_bytes()
        checksum, _, body = content.partition(b"\n")
        if int(checksum, 16) != zlib.crc32(body):
            return Cache()
        header, *texts = body.decode().split("\n")  # JSON on one line has no line breaks in it
        stored = json.loads(header)
        if stored["written_by"] != _writer(configs):
            return Cache()
        return Cache(
            entries={
                name: Entry([(model, texts[line]) for model, line in models], depends)
                for name, (models, depends) in stored["entries"].items()
            },
            states={path: _state(state) for path, state in stored["states"].items()},
            digests={
                path: (Stamp(*state), digest) for path, (state, digest) in stored["digests"].items()
            },
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Cache()


def write_cache(file: Path, configs: str, cache: Cache) -> None:
    """Replace the cache as a whole."""
    texts: list[str] = []
    entries = {}
    for name, entry in cache.entries.items():
        models = [
            (model, len(texts) + position) for position, (model, _) in enumerate(entry.models)
        ]
        entries[name] = models, entry.depends
        texts += [text for _, text in entry.models]
    stored = {
        "written_by": _writer(configs),
        "entries": entries,
        "states": cache.states,
        "digests": cache.digests,
    }
    body = "\n".join([json.dumps(stored, separators=(",", ":")), *texts]).encode()
    # the next load resolves again if this one cannot be kept
    with contextlib.suppress(OSError):
        replace_file(file, b"%08x\n" % zlib.crc32(body) + body)


def merged_states(
    *layers: Mapping[str, Stamp | None], paths: Iterable[str]
) -> dict[str, Stamp | None]:
    """Return the state of each of ``paths`` from the first layer that has it."""
    return {
        path: next(layer[path] for layer in layers if path in layer) for path in sorted(set(paths))
    }


def _writer(configs: str) -> list[Any]:
    """Return what the entries depend on besides files of the project: this code and pydantic's version."""
    here = Path(__file__).parent
    folders = (here, here / "checks", here / "schema")
    code = sorted(
        entry.path
        for folder in folders
        for entry in os.scandir(folder)
        if entry.name.endswith(".py")
    )
    found = importlib.util.find_spec("pydantic")  # locates without importing
    version = Path(found.origin).with_name("version.py") if found and found.origin else here
    paths: list[Path | str] = [*code, here.parent / "errors.py", version]
    states = [stamp(path) for path in paths]
    return [SCHEMA, configs, list(sys.version_info[:3]), [list(state or ()) for state in states]]


def _absolute(start: str, path: str) -> str:
    return path if path.startswith(os.sep) else start + path


def _state(stored: list[int] | None) -> Stamp | None:
    return None if stored is None else Stamp(*stored)
