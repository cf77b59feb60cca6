"""A copy of a project to build in: all that its own code may read, nothing that was built."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from buildsys.errors import StageError

_COPIED_BYTES = (
    1 << 20
)  # larger files (weights, data sets) are linked: nothing of a build depends on where they lie
_LEFT_OUT = {"__pycache__", "node_modules"}


def copy_project(root: Path, target: Path, *, without: Collection[Path]) -> None:
    """Copy the project at ``root`` to the new folder ``target``, leaving out ``without``.

    Large files, hidden folders and virtual environments become links.

    Raises: StageError: something cannot be read or written.
    """
    try:
        _copy_folder(root, target, root, frozenset(without))
    except OSError as error:
        raise StageError(
            f"cannot copy the project: {error.strerror}: {error.filename2 or error.filename}"
        ) from error


def _copy_folder(folder: Path, target: Path, root: Path, without: frozenset[Path]) -> None:
    target.mkdir(parents=True)
    for entry in os.scandir(folder):
        path, copy = Path(entry.path), target / entry.name
        if path in without or entry.name in _LEFT_OUT:
            continue
        if entry.is_symlink():
            copy.symlink_to(_link_target(path, root))
        elif entry.is_dir():
            if entry.name.startswith(".") or (path / "pyvenv.cfg").exists():
                copy.symlink_to(path)
            else:
                _copy_folder(path, copy, root, without)
        elif entry.is_file():
            if entry.stat().st_size <= _COPIED_BYTES:
                shutil.copy(path, copy)
            else:
                copy.symlink_to(path)


def _link_target(link: Path, root: Path) -> Path:
    """Return where a link of the project leads: within the project as before, else by its whole path."""
    written, found = link.readlink(), Path(os.path.normpath(link.parent / link.readlink()))
    return written if not written.is_absolute() and found.is_relative_to(root) else found
