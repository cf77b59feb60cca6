"""Which targets a run has to look at: those it was asked for, without the models that have nothing to do at all.

A project may have thousands of models. Only what is selected here becomes a task of doit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from buildsys.cli.session import Session
from buildsys.plan.project_plan import model_of


class Asked(NamedTuple):
    """What the command line of a run names; ``all_fresh``: also what has nothing to do must become a task."""

    names: Sequence[str]
    with_fresh: bool


class Selection(NamedTuple):
    """The tasks that doit needs for a run, and the targets that it was asked for as well and that are settled."""

    groups: list[str]
    targets: list[str]
    settled: list[str]


def select(session: Session, asked: Asked) -> Selection | None:
    """Return what a run needs, None where a name says more than one can tell from it (a pattern, a path, a mistake)."""
    groups: list[str] = []
    whole: dict[str, None] = {}
    some: list[str] = []
    for name in dict.fromkeys(asked.names):
        models = _whole_models(session, name)
        members = session.members(name) if models is None and _is_plain(name) else []
        if models is None and not members:
            return None
        whole.update(dict.fromkeys(models or ()))
        some += members
        groups += [name] if name not in members else []
    named = [name for name in asked.names if name not in groups]
    return _without_settled(
        session, groups, named, list(whole), list(session.needed(some)), asked.with_fresh
    )


def _without_settled(
    session: Session,
    groups: list[str],
    named: Iterable[str],
    whole: list[str],
    some: list[str],
    with_fresh: bool,
) -> Selection:
    models = dict.fromkeys((*whole, *map(model_of, some)))
    settled = {} if with_fresh else session.settled(models, judge=whole)
    targets = dict.fromkeys(named)
    targets.update(dict.fromkeys(target for target in some if model_of(target) not in settled))
    for model in whole:
        if model not in settled:
            targets.update(dict.fromkeys(session.actions.of(model)))
    wanted = dict.fromkeys(target for model in whole for target in settled.get(model, ()))
    wanted.update(dict.fromkeys(target for target in some if model_of(target) in settled))
    return Selection(
        groups, _in_order(session, targets), [target for target in wanted if target not in targets]
    )


def _whole_models(session: Session, name: str) -> list[str] | None:
    stage, colon, model = name.partition(":")
    if stage != "build":
        return None
    if not colon:
        return list(session.project.models)
    return [model] if model in session.project.models else None


def _is_plain(name: str) -> bool:
    return "*" not in name and not name.endswith(":")


def _in_order(session: Session, targets: Iterable[str]) -> list[str]:
    """Return targets in the order of the plan."""
    wanted = set(targets)
    models = {model_of(target) for target in wanted}
    ordered = (model for model in session.project.models if model in models)
    return [target for model in ordered for target in session.actions.of(model) if target in wanted]
