"""Names of targets on the command line: one syntax for all commands.

STAGE:MODEL[:VARIANT] is the full name. MODEL:STAGE[:VARIANT] names the same target, MODEL:ENGINE an
engine, MODEL and ``build:MODEL`` a whole model, STAGE that stage of all models.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from buildsys.cli.command import unknown_name
from buildsys.cli.model_filter import ModelFilter
from buildsys.errors import UsageError
from buildsys.project.plan import ProjectPlan, model_of
from buildsys.stages.table import ENGINE, STAGES, target_of

if TYPE_CHECKING:
    from buildsys.manifest.project import Project

_EVERY_MODEL = ModelFilter()
_SHOWN_TARGETS = 8
STAGE_DOCS = {
    "build": "everything of every model (the default)",
    **{stage.name: stage.doc for stage in STAGES},
}


class TargetNames:
    """The targets of a project by name.

    Models are planned when they are first needed.
    """

    def __init__(self, project: Project, actions: ProjectPlan) -> None:
        self.project = project
        self.actions = actions

    def needed(self, targets: Iterable[str]) -> dict[str, None]:
        """Return targets and all their dependencies, planning no other model."""
        reached: dict[str, None] = {}
        waiting = list(targets)
        while waiting:
            target = waiting.pop()
            if target not in reached:
                reached[target] = None
                action = self.actions[target]
                waiting += (*action.after, *action.order)
        return reached

    def in_order(self, targets: Collection[str]) -> list[str]:
        """Return ``targets`` in build order, planning only their models."""
        models = set(map(model_of, targets))
        return [
            target
            for model in self.project.models
            if model in models
            for target in self.actions.of(model)
            if target in targets
        ]

    def members(self, name: str) -> list[str]:
        """Return the targets of a target, group or stage name."""
        if name in self.actions:
            return [name]
        model = name.partition(":")[2]
        return self.members_among(name, self.actions.of(model) if model else self.actions)

    def members_among(self, name: str, targets: Iterable[str]) -> list[str]:
        """Return the members of a group among ``targets``."""
        stage, _, model = name.partition(":")
        return [
            target
            for target in targets
            if (stage == "build" or target.startswith(f"{stage}:"))
            and (not model or model_of(target) == model)
        ]

    def select(
        self, names: Sequence[str], *others: TargetNames, only: ModelFilter = _EVERY_MODEL
    ) -> set[str]:
        """Return the targets of names and of matching models, here or in other projects.

        Raises: UsageError: a name is ambiguous or matches nothing, or ``only`` matches no model.
        """
        chosen: set[str] = set()
        projects = (self, *others)
        matching = only.models(*(one.project.models for one in projects)) if only else []
        everything = [f"build:{model}" for model in matching] if only else ["build"]
        for name in names or everything:
            found = {target for one in projects for target in one.targets_of(name)}
            if not found and name != "build":
                known: dict[str, None] = {}
                for one in projects:
                    actions, models = one.actions.values(), one.project.models
                    groups = [f"build:{model}" for model in models]
                    groups += [f"{action.stage}:{action.model}" for action in actions]
                    stages = (action.stage for action in actions)
                    engines = (f"{a.model}:{a.variant}" for a in actions if a.stage == ENGINE)
                    spelled = ("build", *groups, *one.actions, *stages, *models, *engines)
                    known |= dict.fromkeys(spelled)
                listed = "`buildsys list --all` lists all targets"
                raise unknown_name("target", name, known, listed)
            chosen |= only.kept(found, matching, name) if only else found
        return chosen

    def targets_of(self, name: str) -> list[str]:
        """Return the targets of a typed name or pattern, [] if unknown.

        Raises: UsageError: the name is ambiguous.
        """
        if "*" in name:
            return matching(name, self.actions)
        full = self.full_name(name)
        return [] if full is None else self.members(full)

    def full_name(self, name: str) -> str | None:
        """Return the full name of a target or group, None if unknown.

        Raises: UsageError: the name is ambiguous.
        """
        return full_name(name, self.project.models, self.actions)

    def full_names(self, names: Iterable[str], only: ModelFilter = _EVERY_MODEL) -> list[str]:
        """Return names for doit: patterns as targets, unknown names unchanged.

        Raises: UsageError: a name is ambiguous, or a pattern or ``only`` matches nothing.
        """
        found: dict[str, None] = {}
        for name in names:
            if only and name == "build":
                models = only.models(self.project.models)
                found |= dict.fromkeys(f"build:{model}" for model in models)
            elif only:
                found |= dict.fromkeys(self.in_order(self.select([name], only=only)))
            elif "*" in name:
                found |= dict.fromkeys(self.targets_of(name) or self.select([name]))
            else:
                found[self.full_name(name) or name] = None
        return list(found)

    def one_model(self, command: str, names: Sequence[str]) -> str:
        """Return the one model named on the command line.

        Raises: UsageError: no model, several, or an unknown one.
        """
        known = list(self.project.models)
        listed = f"models: {', '.join(known) or 'none yet'}"
        found = {model_of(target) for name in names for target in self.targets_of(name)}
        if len(names) != 1 or len(found) > 1:
            raise UsageError(f"{command} takes the name of one model", listed)
        if not found:
            raise unknown_name("model", names[0], known, listed)
        return found.pop()

    def one_target(self, command: str, names: Sequence[str]) -> str:
        """Return the one target named on the command line.

        Raises: UsageError: no target, several, or an unknown one.
        """
        if len(names) != 1:
            listed = "`buildsys list --all` lists all targets"
            raise UsageError(f"{command} takes the name of one target", listed)
        found = self.in_order(self.select(names))
        if len(found) > 1:
            from buildsys.report.formatting import first_names  # not needed by runs

            listed = first_names(found, _SHOWN_TARGETS)
            problem = f"{names[0]!r} stands for {len(found)} targets"
            raise UsageError(problem, f"name one of {listed}")
        return found[0]


def full_name(name: str, models: Collection[str], actions: ProjectPlan) -> str | None:
    """Return the full name of a target or group, or None.

    Only the models in ``name`` are planned.
    Raises: UsageError: the name is ambiguous.
    """
    found = _readings(name, models, actions)
    if name in found and name in actions:  # as printed everywhere
        return name
    if len(found) > 1:
        # a group with the ambiguous name is spelled as a pattern
        spelled = (f"{one}:*" if one == name else one for one in found)
        raise UsageError(f"{name!r} is ambiguous", f"name one of {', '.join(spelled)}")
    return found[0] if found else None


def models_named_by(names: Collection[str]) -> set[str]:
    """Return the possible models of target names, empty for any model."""
    if any("*" in name or name in STAGE_DOCS for name in names):
        return set()
    return {part for name in names for part in name.split(":")}


def _readings(name: str, models: Collection[str], actions: ProjectPlan) -> list[str]:
    """Return the full names of a short one."""
    found: dict[str, None] = {}
    parts = name.split(":")
    if len(parts) == 1:
        found |= dict.fromkeys([name] if name in STAGE_DOCS else [])
        found |= dict.fromkeys([f"build:{name}"] if name in models else [])
    elif len(parts) == 2:
        for stage, model in (parts, parts[::-1]):
            planned = actions.of(model).values() if stage in STAGE_DOCS else ()
            if (stage == "build" and planned) or any(one.stage == stage for one in planned):
                found[f"{stage}:{model}"] = None
        engine = target_of(ENGINE, *parts)
        found |= dict.fromkeys([engine] if engine in actions else [])
    elif len(parts) == 3:
        first, second, variant = parts
        both = (f"{first}:{second}:{variant}", f"{second}:{first}:{variant}")
        found |= dict.fromkeys(one for one in both if one in actions)
    return list(found)


def matching(pattern: str, actions: ProjectPlan) -> list[str]:
    """Return the targets of a pattern with ``*``.

    Full names come first; a pattern that matches none is compared with the other spellings.
    """
    found = [target for target in actions if fnmatchcase(target, pattern)]
    if found:
        return found
    for target, action in actions.items():
        model, stage, variant = action.model, action.stage, action.variant
        spellings = [model, f"build:{model}", f"{model}:{stage}", f"{model}:{stage}:{variant}"]
        spellings += [f"{model}:{variant}"] if stage == ENGINE else []
        if any(fnmatchcase(one, pattern) for one in spellings):
            found.append(target)
    return found
