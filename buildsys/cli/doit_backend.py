"""doit's state of a project: marks of ``doit ignore``, and all about tasks of others.

Our ledger has everything else.

doit loads this module at each of its commands, in every project of the environment, so it
imports hardly anything.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = "ignored.json"  # in the state folder
_OTHERS = "doit.json"
_IGNORE = "ignore:"  # doit's key of the mark
_sessions: list[Any] = []  # the session of the dodo file


def connect(session: Any) -> None:
    """Let doit's forget and ignore reach the targets of a project."""
    _sessions[:] = [session]


def follow(manager: Any) -> None:
    """Tell the session what ``doit forget`` removes from another backend."""
    if manager is None or isinstance(manager.backend, Backend):
        return

    def remove(name: str) -> None:
        from buildsys.cli.target_names import is_group_or_target

        manager.backend.remove(name)
        if is_group_or_target(name):
            _forget(name)

    def remove_all() -> None:
        manager.backend.remove_all()
        _forget("")

    manager.remove, manager.remove_all = remove, remove_all


def _forget(name: str) -> None:
    for session in _sessions:
        if not session.is_run:  # it has failed in a run
            session.forget(name)


def read_marks(file: Path) -> frozenset[str]:
    """Read the names that doit skips; a missing or damaged file has none."""
    try:
        return frozenset(map(str, json.loads(file.read_bytes())))
    except (OSError, ValueError, TypeError):
        return frozenset()


class Backend:
    """The marks in a JSON file; tasks that are not ours have doit's own file next to it."""

    desc = "marks of doit ignore; buildsys keeps its own records"

    def __init__(self, name: str, codec: Any, *, module_name: str | None = None) -> None:
        del module_name
        self.name = name  # doit reads it
        self._codec = codec
        self._others: Any = None
        self._saved = read_marks(Path(name))
        self._marks = {*self._saved}

    def _others_of(self, task_id: str) -> Any:
        """Return doit's own backend for a task that is not ours, else None."""
        from buildsys.cli.target_names import is_group_or_target

        if is_group_or_target(task_id):
            return None
        if self._others is None:
            from doit.dependency import JsonDB

            self._others = JsonDB(str(Path(self.name).with_name(_OTHERS)), self._codec)
        return self._others

    def get(self, task_id: str, dependency: str) -> Any:
        """Look up a mark."""
        if others := self._others_of(task_id):
            return others.get(task_id, dependency)
        return "1" if dependency == _IGNORE and task_id in self._marks else None

    def set(self, task_id: str, dependency: str, value: Any) -> None:
        """Mark the targets of a name."""
        if others := self._others_of(task_id):
            others.set(task_id, dependency, value)
        elif dependency == _IGNORE:
            self._marks |= {task_id, *_members(task_id)}

    def in_(self, task_id: str) -> bool:
        """Check for a mark."""
        others = self._others_of(task_id)
        return others.in_(task_id) if others else task_id in self._marks

    def remove(self, task_id: str) -> None:
        """Forget the targets of a name, unless it has failed in a run."""
        if others := self._others_of(task_id):
            others.remove(task_id)
        elif not any(session.is_run for session in _sessions):
            self._marks -= {task_id, *_members(task_id)}
            _forget(task_id)

    def remove_all(self) -> None:
        """Forget all targets."""
        self._marks.clear()
        self._others_of("").remove_all()
        _forget("")

    def dump(self) -> None:
        """Write changed marks."""
        if self._others is not None:
            self._others.dump()
        if self._marks != self._saved:
            from doit.exceptions import InvalidDodoFile

            from buildsys.system.files import replace_file

            try:
                replace_file(Path(self.name), json.dumps(sorted(self._marks)).encode())
            except OSError as error:
                raise InvalidDodoFile(f"cannot write {self.name}: {error.strerror}") from None


def _members(name: str) -> Iterable[str]:
    return [target for session in _sessions for target in session.members(name)]
