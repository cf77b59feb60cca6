"""``doit plan --since REV``: which targets differ between a git revision and the project here, built or not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from buildsys.cli.console.listing import Entry, write_page
from buildsys.cli.explain.explain import reasons_json, write_json
from buildsys.cli.git_revision import project_at
from buildsys.cli.session import Session
from buildsys.cli.targets import chosen_targets, open_project
from buildsys.errors import StageError
from buildsys.execution.action_key import declared_parts
from buildsys.execution.key_builder import KeyBuilder
from buildsys.execution.stale_reasons import (
    UNREADABLE,
    UPSTREAM,
    Reason,
    format_reasons,
    part_reasons,
)
from buildsys.store.file_digests import DigestCache, FileDigest
from buildsys.store.state_db import ReadOnlyStateDb
from buildsys.store.text_cache import StateTextCache

SCHEMA = "buildsys/plan-since/1"
ADDED, CHANGED, REMOVED, BEHIND = "added", "changed", "removed", "behind"
_OF_THE_MACHINE = (
    "input",
    "tool",
    "device",
    "env",
    "code",
)  # kinds of parts that no revision of the project sets


@dataclass(frozen=True)
class Difference:
    """A target that is otherwise than at the revision, or behind one that is."""

    target: str
    state: str
    reasons: tuple[Reason, ...] = ()


def plan_since(
    root: Path, names: Sequence[str], out: TextIO, *, revision: str, as_json: bool
) -> None:
    """Print which targets differ between a git revision and the project as it is, and what runs behind them.

    Raises: UsageError: a name or the revision is not known, or the manifests of the revision are wrong.
    """
    session = open_project(root)
    with project_at(session.project, revision) as there:
        before = Session(there.project)
        chosen = chosen_targets([session, before], names)
        found = [one for one in _differences(before, session) if one.target in chosen]
    if as_json:
        listed = [
            {"target": one.target, "state": one.state, "reasons": reasons_json(one.reasons)}
            for one in found
        ]
        write_json(
            out, {"schema": SCHEMA, "since": revision, "commit": there.commit, "targets": listed}
        )
        return
    counts = {
        state: sum(one.state == state for one in found)
        for state in (CHANGED, ADDED, REMOVED, BEHIND)
    }
    counted = (
        ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        or "no target differs"
    )
    entries = (Entry(one.state, one.target, format_reasons(one.reasons)) for one in found)
    write_page(out, entries, [f"since {revision} ({there.commit[:10]}): {counted}"])


def _differences(before: Session, now: Session) -> Iterator[Difference]:
    """Yield the targets whose declaration or sources are otherwise than before, and those behind them."""
    state = now.project.state / "state.db"
    old, new = _Side(before, state), _Side(now, state)
    states: dict[str, str] = {}
    for target, action in now.actions.items():
        known = target in before.actions
        own = _changes(target, old, new) if known else ()
        behind = (
            tuple(_behind(name, states[name]) for name in action.after if name in states)
            if known
            else ()
        )
        if own or behind or not known:
            states[target] = CHANGED if own else BEHIND if behind else ADDED
            yield Difference(target, states[target], (*own, *behind))
    yield from (
        Difference(target, REMOVED) for target in before.actions if target not in now.actions
    )


def _behind(target: str, state: str) -> Reason:
    return Reason(UPSTREAM, target, None, "may rerun" if state == BEHIND else "will rerun")


class _RealPathMemo(DigestCache):
    """Digests files under their real paths: what is linked from the project is known there."""

    def digest(self, path: str) -> FileDigest | None:
        return super().digest(os.path.realpath(path))


class _Side:
    """The parts of targets that a revision can change: what the manifest declares and the content of sources."""

    def __init__(self, session: Session, state: Path) -> None:
        project, db = session.project, ReadOnlyStateDb(state)
        self._actions = session.actions
        self._keys = KeyBuilder(project.root, project.build, _RealPathMemo(db), StateTextCache(db))

    def parts(self, target: str) -> dict[str, str]:
        action = self._actions[target]
        parts = (
            self._keys.build(action).parts
            if action.sources or action.weights
            else declared_parts(action)
        )
        return {
            label: value
            for label, value in parts.items()
            if label.partition(":")[0] not in _OF_THE_MACHINE
        }


def _changes(target: str, old: _Side, new: _Side) -> tuple[Reason, ...]:
    try:
        before, now = old.parts(target), new.parts(target)
    except StageError as error:
        return (Reason(UNREADABLE, str(error)),)
    return tuple(part_reasons(before, now))
