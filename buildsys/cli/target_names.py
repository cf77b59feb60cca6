"""Names of targets on the command line: one syntax for all commands.

STAGE:MODEL[:VARIANT] is the full name. MODEL:STAGE[:VARIANT] names the same target, MODEL:ENGINE an
engine, MODEL and ``build:MODEL`` a whole model, STAGE that stage of all models; ``*`` matches any
text. A manifest's path stands for its models, that of an output or its folder for what writes it.
``--tag`` and ``--owner`` select models.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.cli.command import project_name, typed_path, unknown_name
from buildsys.errors import ManifestError, ManifestErrors, UsageError
from buildsys.plan.action import Action
from buildsys.project.load import broken_manifests
from buildsys.project.plan import ProjectPlan, model_of
from buildsys.report.formatting import first_names
from buildsys.stages.table import ENGINE, STAGES

if TYPE_CHECKING:
    from buildsys.project.load import Project, ResolvedModel

_MOST_TARGETS, _MOST_MODELS = 8, 12  # in messages
MANIFEST = "manifest"  # the group of tasks that fail as a manifest is broken
STAGE_DOCS = {
    "build": "everything of every model (the default)",
    **{stage.name: stage.doc for stage in STAGES},
}


def is_group_or_target(task: str) -> bool:
    """Check whether a task of doit is one of ours, by its name."""
    return task.partition(":")[0] in (*STAGE_DOCS, MANIFEST)


def add_filter(parser: ArgumentParser) -> None:
    """Declare ``--tag`` and ``--owner``."""
    for kind, of in (("tag", "with this tag"), ("owner", "of this owner")):
        text = f"only models {of}; may be repeated"
        parser.add_argument(f"--{kind}", action="append", default=[], help=text)


@dataclass(frozen=True)
class ModelFilter:
    """Models with one of the tags and of one of the owners, every model without both."""

    tags: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Namespace) -> ModelFilter:
        """Read the filter from the command line."""
        return cls(tuple(options.tag), tuple(options.owner))

    def __bool__(self) -> bool:
        """Check whether some models may not match."""
        return bool(self.tags or self.owners)

    def __str__(self) -> str:
        """Write the criteria as the object of a sentence."""
        named = (("tag", self.tags), ("owner", self.owners))
        return " and ".join(f"the {kind} {' or '.join(names)}" for kind, names in named if names)

    def models(self, *projects: Mapping[str, ResolvedModel]) -> list[str]:
        """Name the matching models.

        Raises: UsageError: a tag or an owner is unknown, or no model matches all.
        """
        models = {name: model for project in projects for name, model in project.items()}
        if not self:  # without reading thousands of manifests
            return list(models)
        tags = {name: {*model.data["tags"]} for name, model in models.items()}
        owners = {name: {model.data["owner"]} - {""} for name, model in models.items()}
        matching = list(models)
        for kind, names, values in (("tag", self.tags, tags), ("owner", self.owners, owners)):
            present = sorted(set().union(*values.values()))
            for name in names:
                if name not in present:
                    listed = f"{kind}s: {first_names(present, _MOST_MODELS) or 'none'}"
                    raise unknown_name(kind, name, present, listed)
            matching = [m for m in matching if not names or not values[m].isdisjoint(names)]
        if not matching:
            raise UsageError(f"no model has {self}", "choose another --owner or --tag")
        return matching


_EVERY_MODEL = ModelFilter()


class TargetNames:
    """The targets of a project by name. Models are planned when they are first needed."""

    def __init__(self, project: Project, actions: ProjectPlan) -> None:
        self.project = project
        self.actions = actions
        self.broken: Mapping[str, Sequence[ManifestError]] = {}  # what was asked for lacks them

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
        stage, _, model = name.partition(":")
        targets = self.actions.of(model) if model else self.actions
        return [name for name in targets if stage == "build" or name.startswith(f"{stage}:")]

    def select(
        self, names: Sequence[str], *others: TargetNames, only: ModelFilter = _EVERY_MODEL
    ) -> set[str]:
        """List the targets of names and of matching models, here or in other projects.

        Raises: UsageError: a name is ambiguous or matches nothing, or ``only`` matches no model.
        """
        projects = (self, *others)
        models = only.models(*(project.project.models for project in projects)) if only else []
        chosen: set[str] = set()
        for name in names or ([f"build:{model}" for model in models] if only else ["build"]):
            targets = {target for project in projects for target in project.targets_of(name)}
            if not targets and name != "build":
                raise self._unknown(name, projects)
            if only:
                targets = {target for target in targets if model_of(target) in models}
                if not targets:
                    hint = f"models with it: {first_names(models, _MOST_MODELS)}"
                    raise UsageError(f"nothing of {name!r} has {only}", hint)
            chosen |= targets
        return chosen

    def _unknown(self, name: str, projects: Iterable[TargetNames]) -> UsageError:
        plans = [action for project in projects for action in project.actions.values()]
        spelled = dict.fromkeys(text for action in plans for text, _ in _spellings(action))
        if os.sep not in name:
            listed = "`buildsys list --all` lists all targets"
            return unknown_name("target", name, [*STAGE_DOCS, *spelled], listed)
        files = {model.file for project in projects for model in project.project.models.values()}
        folder = os.path.relpath(self.project.build, self.project.root)
        files |= {f"{folder}/{ref.path}" for action in plans for ref in action.outputs.values()}
        where = f"name a manifest, or an output in {folder}/"
        return unknown_name("target", name, [*STAGE_DOCS, *spelled, *files], where)

    def leave_out(self, names: Sequence[str]) -> None:
        """Note the broken manifests that typed names include, of all without names."""
        is_all = not names or any(
            any(fnmatchcase(stage, name.partition(":")[0]) for stage in STAGE_DOCS)
            for name in names
            if name in STAGE_DOCS or "*" in name.partition(":")[0]
        )
        patterns = [name for name in names if "*" in name]
        some = {file: e for n in patterns for file, e in broken_manifests(self.project, n).items()}
        self.broken = self.project.broken if is_all else some

    def refuse_broken(self, name: str) -> None:
        """Raise the errors of the manifests of a name. Raises: ManifestErrors: there are some."""
        if broken := broken_manifests(self.project, name):
            raise ManifestErrors(tuple(error for errors in broken.values() for error in errors))

    def targets_of(self, name: str) -> list[str]:
        """List the targets of a typed name or pattern, [] if unknown.

        Full names come first; a pattern that matches none is compared with the other spellings.
        Raises: UsageError: the name is ambiguous. ManifestErrors: its manifest is broken.
        """
        if not (targets := self._targets_of(name)):
            self.refuse_broken(name)
            self.refuse_broken(project_name(self.project.root, name))
        return targets

    def _targets_of(self, name: str) -> list[str]:
        if "*" not in name:
            full = self.full_name(name)
            return self._targets_at(name) if full is None else self.members(full)
        return [target for target in self.actions if fnmatchcase(target, name)] or [
            target
            for target, action in self.actions.items()
            if any(fnmatchcase(spelled, name) for spelled, _ in _spellings(action))
        ]

    def full_name(self, name: str) -> str | None:
        """Find the full name of a target or group, None if unknown.

        Only the models in ``name`` are planned.
        Raises: UsageError: the name is ambiguous.
        """
        named = [part for part in name.split(":") if part in self.project.models]
        actions = (action for model in named for action in self.actions.of(model).values())
        spellings = (pair for action in actions for pair in _spellings(action))
        readings = dict.fromkeys(full for spelled, full in spellings if spelled == name)
        if name in STAGE_DOCS:
            readings = {name: None, **readings}
        if len(readings) > 1 and name not in self.actions:  # a target is named as it is printed
            # a group with the ambiguous name is spelled as a pattern
            spelled = (f"{reading}:*" if reading == name else reading for reading in readings)
            raise UsageError(f"{name!r} is ambiguous", f"name one of {', '.join(spelled)}")
        if not readings and (targets := self._targets_at(name)):
            stage, model, *_ = targets[0].split(":")
            names = (targets[0], f"{stage}:{model}", f"build:{model}")
            return next((group for group in names if self.members(group) == targets), None)
        return name if name in readings else next(iter(readings), None)

    def _targets_at(self, name: str) -> list[str]:
        """List the targets of a manifest, or those that write a file or into a folder."""
        project, path = self.project, Path(os.path.abspath(typed_path(name)))  # noqa: PTH100
        if not path.is_relative_to(project.build):
            file = Path(os.path.relpath(path, project.root))
            models = [
                model
                for model, resolved in project.models.items()
                if name and file in (Path(resolved.file), *Path(resolved.file).parents)
            ]
            return [target for model in models for target in self.actions.of(model)]
        place = path.relative_to(project.build)
        models = [model for model in project.models if model in place.parts[:1] or not place.parts]
        place = place.with_suffix(".json") if place.suffix == ".log" else place  # of its result
        return [
            target
            for model in models
            for target, action in self.actions.of(model).items()
            for files in [[Path(output.path) for output in action.outputs.values()]]
            if any(place in (file, *file.parents) for file in files)
        ]

    def full_names(self, names: Iterable[str], only: ModelFilter = _EVERY_MODEL) -> list[str]:
        """List names for doit, patterns as targets.

        Raises: UsageError: a name is unknown or ambiguous, or ``only`` matches nothing.
        """
        full: dict[str, None] = {}
        for name in names:
            if only and name == "build":
                models = only.models(self.project.models)
                full |= dict.fromkeys(f"build:{model}" for model in models)
            elif only or "*" in name or not (full_name := self.full_name(name)):
                full |= dict.fromkeys(self.in_order(self.select([name], only=only)))
            else:
                full[full_name] = None
        return list(full)

    def one_model(self, command: str, names: Sequence[str]) -> str:
        """Find the one model named on the command line.

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
        """Find the one target named on the command line.

        Raises: UsageError: no target, several, or an unknown one.
        """
        if len(names) != 1:
            listed = "`buildsys list --all` lists all targets"
            raise UsageError(f"{command} takes the name of one target", listed)
        targets = self.in_order(self.select(names))
        if len(targets) > 1:
            problem = f"{names[0]!r} stands for {len(targets)} targets"
            raise UsageError(problem, f"name one of {first_names(targets, _MOST_TARGETS)}")
        return targets[0]


def _spellings(action: Action) -> Iterator[tuple[str, str]]:
    """Yield the names of a target and of its groups, each with the full name."""
    model, stage, variant = action.model, action.stage, action.variant
    for name in (model, f"build:{model}", f"{model}:build"):
        yield name, f"build:{model}"
    for name in (f"{stage}:{model}", f"{model}:{stage}"):
        yield name, f"{stage}:{model}"
    if variant:
        for name in (action.target, f"{model}:{stage}:{variant}"):
            yield name, action.target
        if stage == ENGINE:
            yield f"{model}:{variant}", action.target
