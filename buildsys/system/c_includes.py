"""Which files of the project a C or C++ source includes, told from its text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".def")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def language_of(source: str) -> str:
    """Return which compiler a source needs: ``cc`` or ``c++``."""
    return "cc" if source.endswith(".c") else "c++"


def linker_of(sources: Iterable[str]) -> str:
    """Return which compiler links objects of all these sources."""
    return "c++" if "c++" in map(language_of, sources) else "cc"


def find_includes(code: bytes) -> list[str]:
    """Return what ``#include "…"`` names, as written: relative to the file's folder."""
    joined = code.replace(b"\\\r\n", b"").replace(b"\\\n", b"")
    return sorted({os.fsdecode(name) for name in _INCLUDE.findall(joined)})


def included_files(source: Path) -> set[Path]:
    """Return a source and all that it includes by relative paths, directly or not."""
    found: set[Path] = set()
    waiting = [Path(os.path.normpath(source))]
    while waiting:
        file = waiting.pop()
        if file not in found and file.is_file():
            found.add(file)
            named = find_includes(file.read_bytes()) if file.suffix in SUFFIXES else []
            waiting += [Path(os.path.normpath(file.parent / name)) for name in named]
    return found
