"""The version of a module that no distribution stands behind, as where a library was unpacked from an archive."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from buildsys.system.interpreters.identity import Memo
from buildsys.system.interpreters.toolchain import Toolchain, interpreter_environment

_SCHEMA = "module/1"
_FILES = ("_version.py", "version.py", "__init__.py")
_VERSION = re.compile(
    r"""^(?:__version__|version|VERSION)\s*(?::\s*str\s*)?=\s*["']([0-9][^"'\s]*)["']""",
    re.MULTILINE,
)
_READ_BYTES = 1 << 16


def written_version(module: str, path: Sequence[str]) -> str | None:
    """Return the version that a package's own files state, None where there is no such package or it states none."""
    folder = _folder(module, path)
    for name in _FILES if folder else ():
        try:
            text = Path(f"{folder}/{name}").read_bytes()[:_READ_BYTES].decode(errors="replace")
        except OSError:
            continue
        found = _VERSION.search(text)
        if found is not None:
            return found[1]
    return None


def told_version(
    module: str, path: Sequence[str], toolchain: Toolchain, memo: Memo | None
) -> str | None:
    """Return the version that a package tells when it is imported, asked once for each state of its files."""
    folder = _folder(module, path)
    if folder is None:
        return None
    state = _state(folder)
    known = memo.get(f"{_SCHEMA}:{state}") if memo is not None else None
    if known is not None:
        return known
    version = _told(module, toolchain) or f"of unknown version, files {state[:12]}"
    if memo is not None:
        memo.set(f"{_SCHEMA}:{state}", version)
    return version


def _told(module: str, toolchain: Toolchain) -> str:
    from buildsys.system.interpreters.probe import ask, limit_s
    from buildsys.system.interpreters.probe_scripts import (
        MODULE,
    )  # slow to import, and seldom needed

    try:
        environment = interpreter_environment(toolchain, os.environ)
        answer = ask(toolchain.python, MODULE, (module,), environment, limit_s(os.environ))
    except OSError:
        return ""
    return str((answer.fields or {}).get("version") or "")


def _folder(module: str, path: Sequence[str]) -> str | None:
    folders = (f"{entry}/{module}" for entry in path)
    return next((f for f in folders if os.path.isfile(f"{f}/__init__.py")), None)  # noqa: PTH113


def _state(folder: str) -> str:
    with os.scandir(folder) as entries:
        kept = (
            entry for entry in entries if entry.name != "__pycache__"
        )  # which asking itself makes
        found = sorted(
            (entry.path, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in kept
        )
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()
