"""doit's state of a project: only the marks of ``doit ignore``; our ledger has everything else.

doit loads this module at each of its commands, in every project of the environment, so it
imports hardly anything.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = "ignored.json"  # in the state folder
_IGNORE = "ignore:"  # doit's key of the mark
_loaded: list[Any] = []  # the session of the dodo file


def connect(session: Any) -> None:
    """Let doit's forget and ignore reach the targets of a project."""
    _loaded[:] = [session]


def read_marks(file: Path) -> frozenset[str]:
    """Read the names that doit skips.

    Raises: ValueError: the file is damaged. OSError: it cannot be read.
    """
    try:
        marks = json.loads(file.read_bytes())
    except FileNotFoundError:
        return frozenset()
    if not isinstance(marks, list) or not all(isinstance(name, str) for name in marks):
        raise ValueError("it is not a list of names")
    return frozenset(marks)


class Backend:
    """The marks, in a JSON file."""

    desc = "marks of doit ignore; buildsys keeps its own records"

    def __init__(self, name: str, codec: Any, *, module_name: str | None = None) -> None:
        del codec, module_name
        self.name = name
        self._marks: set[str] = set()
        try:
            self._marks = {*read_marks(Path(name))}
        except OSError as error:
            raise _unusable(name, error) from None
        except ValueError:
            Path(name).unlink()
            lost = "is damaged and will be replaced: the marks of `doit ignore` are lost"
            sys.stderr.write(f"buildsys: warning: {name} {lost}\n")
        self._saved = frozenset(self._marks)

    def get(self, task_id: str, dependency: str) -> str | None:
        """Look up a mark."""
        return "1" if dependency == _IGNORE and task_id in self._marks else None

    def set(self, task_id: str, dependency: str, value: Any) -> None:
        """Mark the targets of a name."""
        del value
        if dependency == _IGNORE:
            self._marks |= {task_id, *_members(task_id)}

    def in_(self, task_id: str) -> bool:
        """Check for a mark."""
        return task_id in self._marks

    def remove(self, task_id: str) -> None:
        """Forget the targets of a name, unless it has failed in a run."""
        if not any(session.is_run for session in _loaded):
            self._marks -= {task_id, *_members(task_id)}
            for session in _loaded:
                session.forget(task_id)

    def remove_all(self) -> None:
        """Forget all targets."""
        self._marks.clear()
        for session in _loaded:
            session.forget("")

    def dump(self) -> None:
        """Write changed marks."""
        if self._marks == self._saved:
            return
        new = Path(f"{self.name}.{os.getpid()}")
        try:
            new.write_text(json.dumps(sorted(self._marks)))
            new.replace(self.name)
        except OSError as error:
            raise _unusable(self.name, error) from None


def _members(name: str) -> Iterable[str]:
    return [target for session in _loaded for target in session.members(name)]


def _unusable(file: str, error: OSError) -> Exception:
    from doit.exceptions import InvalidDodoFile

    problem = f"cannot use {file}: {error.strerror or error}; its folder must be writable"
    unusable: Exception = InvalidDodoFile(problem)
    return unusable
