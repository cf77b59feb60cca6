"""doit's state of a project: only the marks of ``doit ignore``; our ledger has everything else.

doit loads this module at each of its commands, in every project of the environment, so it
imports hardly anything.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = "ignored.json"  # in the state folder
_IGNORE = "ignore:"  # doit's key of the mark
_sessions: list[Any] = []  # the session of the dodo file


def connect(session: Any) -> None:
    """Let doit's forget and ignore reach the targets of a project."""
    _sessions[:] = [session]


def read_marks(file: Path) -> frozenset[str]:
    """Read the names that doit skips; a missing or damaged file has none."""
    try:
        return frozenset(map(str, json.loads(file.read_bytes())))
    except (OSError, ValueError, TypeError):
        return frozenset()


class Backend:
    """The marks, in a JSON file."""

    desc = "marks of doit ignore; buildsys keeps its own records"

    def __init__(self, name: str, codec: Any, *, module_name: str | None = None) -> None:
        del codec, module_name
        self.name = name  # doit reads it
        self._saved = read_marks(Path(name))
        self._marks = {*self._saved}

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
        if not any(session.is_run for session in _sessions):
            self._marks -= {task_id, *_members(task_id)}
            for session in _sessions:
                session.forget(task_id)

    def remove_all(self) -> None:
        """Forget all targets."""
        self._marks.clear()
        for session in _sessions:
            session.forget("")

    def dump(self) -> None:
        """Write changed marks."""
        if self._marks != self._saved:
            from doit.exceptions import InvalidDodoFile

            from buildsys.system.files import replace_file

            try:
                replace_file(Path(self.name), json.dumps(sorted(self._marks)).encode())
            except OSError as error:
                raise InvalidDodoFile(f"cannot write {self.name}: {error.strerror}") from None


def _members(name: str) -> Iterable[str]:
    return [target for session in _sessions for target in session.members(name)]
