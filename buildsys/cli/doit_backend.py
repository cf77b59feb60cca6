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
from typing import Any, Protocol

FILE = "ignored.json"  # in the state folder
_IGNORE = "ignore:"  # doit's key of the mark


class Records(Protocol):
    """The targets of the project that the dodo file has loaded."""

    is_run: bool  # doit drops the records of failed targets, too

    def members(self, name: str) -> Iterable[str]:
        """List the targets of a target or group."""

    def forget(self, name: str) -> None:
        """Drop the records of a target or group, of all targets without a name."""


_loaded: list[Records] = []


def connect(records: Records) -> None:
    """Let doit's forget and ignore reach the targets of a project."""
    _loaded[:] = [records]


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
        self._saved: frozenset[str] | None = None  # None: must be written
        try:
            self._saved = read_marks(Path(name))
        except OSError as error:
            raise _unusable(Path(name), error) from None
        except ValueError:
            lost = "is damaged and will be replaced: the marks of `doit ignore` are lost"
            sys.stderr.write(f"buildsys: warning: {name} {lost}\n")
        self._marks = set(self._saved or ())

    def get(self, task_id: str, dependency: str) -> str | None:
        """Look up a mark."""
        return "1" if dependency == _IGNORE and task_id in self._marks else None

    def set(self, task_id: str, dependency: str, value: Any) -> None:
        """Mark the targets of a name."""
        del value
        if dependency == _IGNORE:
            self._marks |= {task_id, *self._members(task_id)}

    def in_(self, task_id: str) -> bool:
        """Check for a mark."""
        return task_id in self._marks

    def remove(self, task_id: str) -> None:
        """Forget the targets of a name, unless it has failed in a run."""
        if any(records.is_run for records in _loaded):
            return
        self._marks -= {task_id, *self._members(task_id)}
        for records in _loaded:
            records.forget(task_id)

    def remove_all(self) -> None:
        """Forget all targets."""
        self._marks.clear()
        for records in _loaded:
            records.forget("")

    def dump(self) -> None:
        """Write changed marks."""
        if self._saved is not None and self._marks == {*self._saved}:
            return
        file = Path(self.name)
        new = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            new.write_text(json.dumps(sorted(self._marks)))
            new.replace(file)
        except OSError as error:
            raise _unusable(file, error) from None
        self._saved = frozenset(self._marks)

    @staticmethod
    def _members(name: str) -> Iterable[str]:
        return [target for records in _loaded for target in records.members(name)]


def _unusable(file: Path, error: OSError) -> Exception:
    from doit.exceptions import InvalidDodoFile

    hint = "its folder must be writable and its disk not full"
    unusable: Exception = InvalidDodoFile(f"cannot use {file}: {error.strerror or error}; {hint}")
    return unusable
