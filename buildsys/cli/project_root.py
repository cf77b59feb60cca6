"""The project around the current folder, and paths typed in one of its folders."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from buildsys.errors import UsageError

DODO = "dodo.py"
_PATH = re.compile(r"(?<![\w./~-])[\w.-]+(?:/[\w.,@+-]+)*/[\w@+-]+(?:\.\w+)*")
_started_in: list[Path] = []  # the folder of the user, once the project is another one


def find_project(folder: Path) -> Path | None:
    """Return the nearest project at or above ``folder``."""
    return next((one for one in (folder, *folder.parents) if is_project(one)), None)


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
        for dodo in (folder / DODO for folder in (here, *here.parents)):
            if os.path.exists(dodo) and not os.access(dodo, os.R_OK):  # noqa: PTH110
                raise UsageError(f"cannot read {dodo}: permission denied", "check its permissions")
        problem = f"{here} is not in a project (a folder with {DODO} and configs/)"
        raise UsageError(problem, "change to one, or make this folder one with `buildsys init`")
    if root != here:
        _started_in[:] = [here]
        os.chdir(root)
        sys.stderr.write(f"in {root}\n")


def typed_path(name: str) -> Path:
    """Return the path of a file as named on the command line, relative to the user's folder."""
    path = Path(name)
    if not _started_in or path.is_absolute():
        return path
    return Path(os.path.relpath(_started_in[0] / path))


def shown_path(path: Path | str) -> str:
    """Return a path relative to the user's folder, or the absolute one if that is shorter."""
    return min(os.path.relpath(path, *_started_in), str(Path(path).absolute()), key=len)


def shown_text(text: str) -> str:
    """Return a text with the existing files that it names relative to the user's folder."""
    if not _started_in:
        return text
    return _PATH.sub(
        lambda found: shown_path(found[0]) if Path(found[0]).exists() else found[0], text
    )
