"""The project around the current folder, and paths typed in one of its folders."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from buildsys.errors import UsageError

DODO = "dodo.py"
_started_in: list[Path] = []  # the folder of the user, once the project is another one


def find_project(folder: Path) -> Path | None:
    """Find the nearest project at or above ``folder``."""
    return next(filter(is_project, (folder, *folder.parents)), None)


def is_project(folder: Path) -> bool:
    """Check for a dodo file of buildsys, in contrast to another use of doit."""
    try:
        return b"buildsys" in (folder / DODO).read_bytes()
    except OSError:
        return False


def enter_project() -> None:
    """Change to the project around the current folder.

    Raises: UsageError: there is none.
    """
    here = Path.cwd()
    root = find_project(here)
    if root is None:
        problem = f"{here} is not in a project (a folder with {DODO} and configs/)"
        raise UsageError(problem, "change to one, or make this folder one with `buildsys init`")
    if root != here:
        _started_in[:] = [here]
        os.chdir(root)
        sys.stderr.write(f"in {root}\n")


def typed_path(name: str) -> Path:
    """Locate a file named on the command line, relative to the user's folder."""
    path = Path(name)
    if not _started_in or path.is_absolute():
        return path
    return Path(os.path.relpath(_started_in[0] / path))


def shown_path(path: Path | str) -> str:
    """Write a path relative to the user's folder, or the absolute one if that is shorter."""
    return min(os.path.relpath(path, *_started_in), str(Path(path).absolute()), key=len)
