"""Files of installed libraries, by the names of their folders."""

from __future__ import annotations

LIBRARY_FOLDERS = ("site-packages", "dist-packages")


def in_library(file: str) -> bool:
    """Return True for a path below a folder of installed libraries."""
    return "/site-packages/" in file or "/dist-packages/" in file
