"""doit's own database. Nothing that matters is in it but what ``doit ignore`` has marked: a broken one is set aside."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

_UNWRITABLE = "its folder must be writable and its disk not full"
_LOST = "only what `doit ignore` has marked is lost"


class UnusableRecordError(Exception):
    """doit's database cannot be used; says in one line why, and what to do."""


def clear_away(path: Path, error: BaseException) -> None:
    """Set a damaged database aside, so that doit makes a new one.

    Raises: UnusableRecordError: it is whole, but cannot be read or written; or it cannot be set aside.
    """
    cause = error.__cause__ or error.__context__ or error
    if not _is_damage(cause):
        raise UnusableRecordError(f"cannot use doit's own record {path}: {cause}; {_UNWRITABLE}")
    aside = path.with_name(f"{path.name}.broken-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}")
    try:
        path.rename(aside)
        path.with_name(f"{path.name}-journal").unlink(
            missing_ok=True
        )  # sqlite would roll it back into the new one
    except FileNotFoundError:  # another doit was faster
        return
    except OSError as problem:
        told = f"cannot use doit's own record {path}: {cause}, nor set it aside: {problem.strerror}"
        raise UnusableRecordError(f"{told}; {_UNWRITABLE}") from None
    _warn(f"doit's own record {path} is not readable ({cause}); set aside as {aside.name}: {_LOST}")


def write_at_the_end(write: Callable[[], None], path: Path) -> None:
    """Write what a run leaves in the database; a full disk is no reason to fail what has passed."""
    try:
        write()
    except sqlite3.Error as error:
        _warn(f"cannot write doit's own record {path}: {error}; nothing of this run is lost")


def _is_damage(error: BaseException) -> bool:
    """Tell a file that is no database, or not doit's, from one that is locked or on a full disk."""
    return type(error) is sqlite3.DatabaseError or str(error).startswith(
        ("no such", "table doit has")
    )


def _warn(message: str) -> None:
    sys.stderr.write(f"buildsys: warning: {message}\n")
