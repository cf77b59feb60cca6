"""Versions of modules without a distribution, e.g. unpacked from an archive."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.system.text_cache import TextCache

_SCHEMA = "module/1"
_FILES = ("_version.py", "version.py", "__init__.py")
_VERSION = re.compile(
    r"""^(?:__version__|version|VERSION)\s*(?::\s*str\s*)?=\s*["']([0-9][^"'\s]*)["']""",
    re.MULTILINE,
)
_READ_BYTES = 1 << 16


def written_version(module: str, path: Sequence[str]) -> str | None:
    """Return the version written in a package's files, or None."""
    folder = _package_folder(module, path)
    for name in _FILES if folder else ():
        try:
            text = Path(f"{folder}/{name}").read_bytes()[:_READ_BYTES].decode(errors="replace")
        except OSError:
            continue
        found = _VERSION.search(text)
        if found is not None:
            return found[1]
    return None


def imported_version(
    module: str, path: Sequence[str], toolchain: Toolchain, texts: TextCache | None
) -> str | None:
    """Return the version reported by a package on import, or None without a package.

    It is imported once per state of its files. Without a version, the files identify it.
    """
    folder = _package_folder(module, path)
    if folder is None:
        return None
    state = _stat_digest(folder)
    known = texts.get(f"{_SCHEMA}:{state}") if texts is not None else None
    if known is not None:
        return known
    # slow to import, rarely needed
    from buildsys.system.interpreters.probe import LIBRARY_SCRIPT, probe_limit_s, run_probe

    version = ""
    try:
        environment, limit_s = toolchain.environment(os.environ), probe_limit_s(os.environ)
        result = run_probe(toolchain.python, LIBRARY_SCRIPT, (module,), environment, limit_s)
        version = str((result.fields or {}).get("version") or "")
    except OSError:
        pass  # the interpreter cannot be started: its check reports that
    version = version or f"of unknown version, files {state[:12]}"
    if texts is not None:
        texts.set(f"{_SCHEMA}:{state}", version)
    return version


def _package_folder(module: str, path: Sequence[str]) -> str | None:
    folders = (f"{entry}/{module}" for entry in path)
    return next((f for f in folders if os.path.isfile(f"{f}/__init__.py")), None)  # noqa: PTH113


def _stat_digest(folder: str) -> str:
    with os.scandir(folder) as entries:
        # importing the package creates __pycache__
        kept = [(e.path, e.stat()) for e in entries if e.name != "__pycache__"]
    stats = sorted((path, found.st_mtime_ns, found.st_size) for path, found in kept)
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()
