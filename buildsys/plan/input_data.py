"""Dependencies of ``data`` entries, the sources of input values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

DataEntry = Mapping[str, Any]


def data_files(entries: Iterable[DataEntry | None]) -> tuple[str, ...]:
    """Return the user's files in ``entries``, image folders with a slash."""
    files = []
    for entry in entries:
        data = entry or {}
        files += [data["npz"]] if data.get("npz") else []
        files += [data["python"].rpartition(":")[0]] if data.get("python") else []
        files += [f"{data['images'].rstrip('/')}/"] if data.get("images") else []
    return tuple(dict.fromkeys(files))


def image_tools(entries: Iterable[DataEntry | None]) -> tuple[str, ...]:
    """Return the library for images, if any entry has images."""
    return ("pillow",) if any("images" in (entry or ()) for entry in entries) else ()
