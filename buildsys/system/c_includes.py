"""C and C++ sources: their language, and the files they include."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".def")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def language_of(source: str) -> str:
    """Return the compiler for a source: ``cc`` or ``c++``."""
    return "cc" if source.endswith(".c") else "c++"


def linker_of(sources: Iterable[str]) -> str:
    """Return the compiler to link the objects of ``sources``."""
    return "c++" if "c++" in map(language_of, sources) else "cc"


def find_includes(code: bytes) -> list[str]:
    """Return the paths in ``#include "…"``, relative to the file's folder."""
    joined = code.replace(b"\\\r\n", b"").replace(b"\\\n", b"")
    return sorted({os.fsdecode(name) for name in _INCLUDE.findall(joined)})


def included_files(source: Path) -> set[Path]:
    """Return a source and its direct and indirect relative includes."""
    found: set[Path] = set()
    waiting = [Path(os.path.normpath(source))]
    while waiting:
        file = waiting.pop()
        if file not in found and file.is_file():
            found.add(file)
            named = find_includes(file.read_bytes()) if file.suffix in SUFFIXES else []
            waiting += [Path(os.path.normpath(file.parent / name)) for name in named]
    return found
