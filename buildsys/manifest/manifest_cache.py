"""Cache of resolved manifests, checked by the stamps of their files.

A load from the cache imports neither pydantic nor yaml: planning one of a thousand models would
take a second more. A missing, broken or read-only cache costs only time.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.system.files import MAX_RESULT_BYTES, Stamp, read_limited, replace_file, stamp

SCHEMA = "buildsys/manifests/8"
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


class Entry(NamedTuple):
    """The models of one file (name, JSON text) and the stamps of all files they depend on."""

    models: list[tuple[str, str]]
    stamps: Mapping[str, Stamp | None]


def read_entries(file: Path, root: Path, configs: Path) -> dict[str, Entry]:
    """Read the entries with unchanged stamps, by manifest."""
    start = f"{root}{os.sep}"  # joined as text: there may be thousands

    @cache  # most entries share some files
    def current(path: str) -> list[int] | None:
        state = stamp(path if path.startswith(os.sep) else start + path)
        return None if state is None else list(state)

    try:
        stored = json.loads(read_limited(file, MAX_RESULT_BYTES))
        if stored["written_by"] != _writer(configs):
            return {}
        return {
            name: Entry([(model, text) for model, text in models], stamps)
            for name, (models, stamps) in stored["entries"].items()
            if all(current(path) == before for path, before in stamps.items())
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def write_entries(file: Path, configs: Path, entries: Mapping[str, Entry]) -> None:
    """Replace the cache; without effect if it cannot be written."""
    content = json.dumps({"written_by": _writer(configs), "entries": entries})
    with contextlib.suppress(OSError):
        replace_file(file, content.encode())


def _writer(configs: Path) -> Any:
    """Identify this code."""
    package = Path(__file__).parents[1]
    code = sorted(file for pattern in _CODE for file in package.glob(pattern))
    writer = [SCHEMA, str(configs), sys.version_info[:3], *map(stamp, code)]
    return json.loads(json.dumps(writer))
