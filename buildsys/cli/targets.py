"""What ``doit explain`` and ``doit plan`` look at: the targets that a name stands for, and what becomes of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from buildsys.cli.session import Session
from buildsys.errors import UsageError
from buildsys.execution.freshness import Explanation, explain, read_only_checker
from buildsys.manifest.project import load_project
from buildsys.system.suggestions import nearest


def open_project(root: Path) -> Session:
    """Return the project at ``root`` for somebody who only looks: not even the cache of its manifests is written.

    Raises: ManifestErrors: the manifests are wrong.
    """
    return Session(load_project(root, remember=False))


def chosen_targets(sessions: Sequence[Session], names: Sequence[str]) -> set[str]:
    """Return the targets behind names in any of the projects, all when nothing is named.

    A name is a target, a group, a stage, or a pattern with ``*``.

    Raises: UsageError: a name stands for nothing; the nearest known ones are told.
    """
    chosen: set[str] = set()
    for name in names or ["build"]:
        found = {target for session in sessions for target in _members(session, name)}
        if not found and name != "build":
            raise _unknown(name, sessions)
        chosen |= found
    return chosen


def with_needed(session: Session, targets: Iterable[str]) -> list[str]:
    """Return targets with all that has to be made before them, in an order in which they can be made."""
    wanted = session.needed(targets)
    return [target for target in session.actions if target in wanted]


def explanations(session: Session, targets: Iterable[str]) -> dict[str, Explanation]:
    """Return what becomes of targets, and of all that they need, in the next run."""
    project = session.project
    checker = read_only_checker(project.root, project.build, project.state)
    needed = with_needed(session, targets)
    after = {target: session.actions[target].after for target in needed}
    return explain((checker.examine(session.actions[target]) for target in needed), after)


def _members(session: Session, name: str) -> list[str]:
    if "*" not in name:
        return session.members(name)
    from fnmatch import fnmatchcase

    return [target for target in session.actions if fnmatchcase(target, name)]


def _unknown(name: str, sessions: Sequence[Session]) -> UsageError:
    known: dict[str, None] = {}
    for session in sessions:
        actions = session.actions.values()
        groups = [f"build:{model}" for model in session.project.models]
        groups += [f"{action.stage}:{action.model}" for action in actions]
        known |= dict.fromkeys(
            ("build", *groups, *session.actions, *(action.stage for action in actions))
        )
    near = nearest(name, known)
    hint = f"nearest: {', '.join(near)}" if near else "`doit list --all` tells all of them"
    return UsageError(f"there is no target {name!r}", hint)
