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
    from buildsys.project.load import Project

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
        """List targets and all their dependencies, planning no other model."""
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
        """List ``targets`` in build order, planning only their models."""
        models = set(map(model_of, targets))
        return [
            target
            for model in self.project.models
            if model in models
            for target in self.actions.of(model)
            if target in targets
        ]

    def members(self, name: str) -> list[str]:
        """List the targets of a target, group or stage name."""
        if name in self.actions:
            return [name]
        model = name.partition(":")[2]
        return self.members_among(name, self.actions.of(model) if model else self.actions)

    def members_among(self, name: str, targets: Iterable[str]) -> list[str]:
        """List the members of a group among ``targets``."""
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
        """List the targets of names and of matching models, here or in other projects.

        Raises: UsageError: a name is ambiguous or matches nothing, or ``only`` matches no model.
        """
        chosen: set[str] = set()
        projects = (self, *others)
        matching = only.models(*(project.project.models for project in projects)) if only else []
        everything = [f"build:{model}" for model in matching] if only else ["build"]
        for name in names or everything:
            targets = {target for project in projects for target in project.targets_of(name)}
            if not targets and name != "build":
                names_of_all: dict[str, None] = {}
                for project in projects:
                    actions, models = project.actions.values(), project.project.models
                    groups = [f"build:{model}" for model in models]
                    groups += [f"{action.stage}:{action.model}" for action in actions]
                    stages = (action.stage for action in actions)
                    engines = (f"{a.model}:{a.variant}" for a in actions if a.stage == ENGINE)
                    spelled = ("build", *groups, *project.actions, *stages, *models, *engines)
                    names_of_all |= dict.fromkeys(spelled)
                listed = "`buildsys list --all` lists all targets"
                raise unknown_name("target", name, names_of_all, listed)
            chosen |= only.kept(targets, matching, name) if only else targets
        return chosen

    def targets_of(self, name: str) -> list[str]:
        """List the targets of a typed name or pattern, [] if unknown.

        Raises: UsageError: the name is ambiguous.
        """
        if "*" in name:
            return matching(name, self.actions)
        full = self.full_name(name)
        return [] if full is None else self.members(full)

    def full_name(self, name: str) -> str | None:
        """Find the full name of a target or group, None if unknown.

        Raises: UsageError: the name is ambiguous.
        """
        return full_name(name, self.project.models, self.actions)

    def full_names(self, names: Iterable[str], only: ModelFilter = _EVERY_MODEL) -> list[str]:
        """List names for doit: patterns as targets, unknown names unchanged.

        Raises: UsageError: a name is ambiguous, or a pattern or ``only`` matches nothing.
        """
        full: dict[str, None] = {}
        for name in names:
            if only and name == "build":
                models = only.models(self.project.models)
                full |= dict.fromkeys(f"build:{model}" for model in models)
            elif only:
                full |= dict.fromkeys(self.in_order(self.select([name], only=only)))
            elif "*" in name:
                full |= dict.fromkeys(self.targets_of(name) or self.select([name]))
            else:
                full[self.full_name(name) or name] = None
        return list(full)

    def one_model(self, command: str, names: Sequence[str]) -> str:
        """Return the one model named on the command line.

        Raises: UsageError: no model, several, or an unknown one.
        """
        models = list(self.project.models)
        listed = f"models: {', '.join(models) or 'none yet'}"
        named = {model_of(target) for name in names for target in self.targets_of(name)}
        if len(names) != 1 or len(named) > 1:
            raise UsageError(f"{command} takes the name of one model", listed)
        if not named:
            raise unknown_name("model", names[0], models, listed)
        return named.pop()

    def one_target(self, command: str, names: Sequence[str]) -> str:
        """Return the one target named on the command line.

        Raises: UsageError: no target, several, or an unknown one.
        """
        if len(names) != 1:
            listed = "`buildsys list --all` lists all targets"
            raise UsageError(f"{command} takes the name of one target", listed)
        targets = self.in_order(self.select(names))
        if len(targets) > 1:
            from buildsys.report.formatting import first_names  # not needed by runs

            listed = first_names(targets, _SHOWN_TARGETS)
            problem = f"{names[0]!r} stands for {len(targets)} targets"
            raise UsageError(problem, f"name one of {listed}")
        return targets[0]


def full_name(name: str, models: Collection[str], actions: ProjectPlan) -> str | None:
    """Find the full name of a target or group, or None.

    Only the models in ``name`` are planned.
    Raises: UsageError: the name is ambiguous.
    """
    readings = _readings(name, models, actions)
    if name in readings and name in actions:  # as printed everywhere
        return name
    if len(readings) > 1:
        # a group with the ambiguous name is spelled as a pattern
        spelled = (f"{reading}:*" if reading == name else reading for reading in readings)
        raise UsageError(f"{name!r} is ambiguous", f"name one of {', '.join(spelled)}")
    return readings[0] if readings else None


def models_named_by(names: Collection[str]) -> set[str]:
    """List the possible models of target names, empty for any model."""
    if any("*" in name or name in STAGE_DOCS for name in names):
        return set()
    return {part for name in names for part in name.split(":")}


def _readings(name: str, models: Collection[str], actions: ProjectPlan) -> list[str]:
    """List the full names of a short one."""
    readings: dict[str, None] = {}
    parts = name.split(":")
    if len(parts) == 1:
        readings |= dict.fromkeys([name] if name in STAGE_DOCS else [])
        readings |= dict.fromkeys([f"build:{name}"] if name in models else [])
    elif len(parts) == 2:
        for stage, model in (parts, parts[::-1]):
            planned = actions.of(model).values() if stage in STAGE_DOCS else ()
            if (stage == "build" and planned) or any(target.stage == stage for target in planned):
                readings[f"{stage}:{model}"] = None
        engine = target_of(ENGINE, *parts)
        readings |= dict.fromkeys([engine] if engine in actions else [])
    elif len(parts) == 3:
        first, second, variant = parts
        both = (f"{first}:{second}:{variant}", f"{second}:{first}:{variant}")
        readings |= dict.fromkeys(target for target in both if target in actions)
    return list(readings)


def matching(pattern: str, actions: ProjectPlan) -> list[str]:
    """List the targets of a pattern with ``*``.

    Full names come first; a pattern that matches none is compared with the other spellings.
    """
    targets = [target for target in actions if fnmatchcase(target, pattern)]
    if targets:
        return targets
    for target, action in actions.items():
        model, stage, variant = action.model, action.stage, action.variant
        spellings = [model, f"build:{model}", f"{model}:{stage}", f"{model}:{stage}:{variant}"]
        spellings += [f"{model}:{variant}"] if stage == ENGINE else []
        if any(fnmatchcase(spelling, pattern) for spelling in spellings):
            targets.append(target)
    return targets
