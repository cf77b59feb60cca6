"""Selection of the targets to check in a run.

Of thousands of models only the selected targets become tasks of doit; models that are entirely up
to date are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from buildsys.cli.session import Session
from buildsys.plan.project_plan import model_of


class Requested(NamedTuple):
    """The names on the command line of a run."""

    names: Sequence[str]
    every_task: bool  # targets that are up to date must become tasks as well


class Selection(NamedTuple):
    """Tasks for doit, and requested targets known to be up to date."""

    groups: list[str]
    targets: list[str]
    up_to_date: list[str]


def select(session: Session, requested: Requested) -> Selection | None:
    """Return the selection, None for a pattern, path or mistake."""
    groups: list[str] = []
    whole: dict[str, None] = {}  # models
    single: list[str] = []
    for name in dict.fromkeys(requested.names):
        models = _whole_models(session, name)
        members: list[str] = []
        if models is None:
            is_plain = "*" not in name and not name.endswith(":")
            members = session.members(name) if is_plain else []
            if not members:
                return None
        whole.update(dict.fromkeys(models or ()))
        single += members
        groups += [name] if name not in members else []
    needed = list(session.needed(single))
    fresh: dict[str, list[str]] = {}
    if not requested.every_task:
        checked = dict.fromkeys((*whole, *map(model_of, needed)))
        fresh = session.up_to_date_models(checked, check=whole)
    targets = dict.fromkeys(name for name in requested.names if name not in groups)
    targets.update(dict.fromkeys(one for one in needed if model_of(one) not in fresh))
    for model in whole:
        if model not in fresh:
            targets.update(dict.fromkeys(session.actions.of(model)))
    up_to_date = dict.fromkeys(target for model in whole for target in fresh.get(model, ()))
    up_to_date.update(dict.fromkeys(one for one in needed if model_of(one) in fresh))
    used = set(map(model_of, targets))
    ordered = [
        target
        for model in session.project.models
        if model in used
        for target in session.actions.of(model)
        if target in targets
    ]
    return Selection(groups, ordered, [one for one in up_to_date if one not in targets])


def _whole_models(session: Session, name: str) -> list[str] | None:
    stage, colon, model = name.partition(":")
    if stage != "build":
        return None
    if not colon:
        return list(session.project.models)
    return [model] if model in session.project.models else None
