"""Targets of a model and of a whole project."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

from buildsys.plan.action import Action
from buildsys.plan.engine_typing import VersionOf, unknown_version
from buildsys.stages.table import STAGES, StageInfo
from buildsys.system.printable import did_you_mean

if TYPE_CHECKING:
    from buildsys.plan.model_plan import ModelPlan
    from buildsys.project.load import ResolvedModel

# the first section in a resolved manifest that may decide a stage, after model, source, dims, …
_FIRST_OF_STAGES, _NO_NETWORK = ',"reads":', '"source":null'


class ProjectPlan(Mapping[str, Action]):
    """Target -> action; each model is planned on first use."""

    def __init__(
        self, models: Mapping[str, ResolvedModel], version_of: VersionOf = unknown_version
    ) -> None:
        self._models = models
        self._version_of = version_of
        self._planned: dict[str, dict[str, Action]] = {}

    def of(self, model: str) -> Mapping[str, Action]:
        """Plan one model; the plan of an unknown one is empty.

        Raises: ManifestError: an action needs what no action of the model writes.
        """
        planned = self._planned.get(model)
        if planned is None:
            if model not in self._models:
                return {}
            data = json.loads(self._models[model].text)  # which need not stay
            actions = plan_model(data, self._version_of)
            planned = {action.target: action for action in actions}
            _check_inputs(self._models[model], planned)
            self._planned[model] = planned
        return planned

    def targets(self, model: str) -> Sequence[str]:
        """List the targets of one model."""
        return tuple(self.of(model))

    def stages(self) -> list[str]:
        """List the stages of all models in the order of their targets.

        One model is planned for each combination of sections.
        """
        planned: dict[str, str] = {}
        for name, model in self._models.items():
            # not parsed: there may be thousands. Quotes inside of strings have a backslash, and a
            # nested field of this name only makes the text longer.
            head, _, tail = model.text.partition(_FIRST_OF_STAGES)
            planned.setdefault(f"{_NO_NETWORK in head}{tail}", name)
        actions = (action for name in planned.values() for action in self.of(name).values())
        return list(dict.fromkeys(action.stage for action in actions))

    def __getitem__(self, target: str) -> Action:
        return self.of(model_of(target))[target]

    def __iter__(self) -> Iterator[str]:
        for model in self._models:
            yield from self.of(model)

    def __len__(self) -> int:
        return sum(len(self.of(model)) for model in self._models)


def _check_inputs(model: ResolvedModel, actions: Mapping[str, Action]) -> None:
    """Check that every input and earlier target is planned. Raises: ManifestError."""
    written = {ref.path for action in actions.values() for ref in action.outputs.values()}
    written.update(actions)
    for action in actions.values():
        needs = (*(ref.path for ref in action.inputs.values()), *action.after, *action.order)
        if missing := next((name for name in needs if name not in written), None):
            places = (
                (section, number)
                for section in ("engines", "commands")
                for number, entry in enumerate(model.data[section])
                if entry["name"] == action.variant
            )
            problem = f"{action.target} needs {missing}, which no target of its model writes"
            hint = did_you_mean(missing, sorted(written), "`buildsys resolve` shows its sections")
            raise model.error(next(places, ("model",)), problem, hint)


def model_of(target: str) -> str:
    """Read the model in the name of a target."""
    return (*target.split(":", 2), "")[1]


def plan_model(
    spec: Mapping[str, Any], version_of: VersionOf = unknown_version
) -> tuple[Action, ...]:
    """Plan the actions of one model, each after its dependencies.

    ``version_of`` returns the TensorRT version that builds an engine, as it decides which graph
    the engine is built from.
    """
    from buildsys.plan.model_plan import ModelPlan  # 5 ms, not needed with nothing to do

    model = ModelPlan(spec, version_of)
    actions = {action.target: action for action in _of_network(model)}
    for stage in STAGES:
        if stage.planned_for == "actions":
            planned = _plan_of(stage)(model, actions)
            actions |= {action.target: action for action in planned}
    ordered: dict[str, Action] = {}
    for target in actions:
        _add_in_order(target, actions, ordered)
    return tuple(ordered.values())


def _of_network(model: ModelPlan) -> Iterator[Action]:
    """Plan the network's graphs, then one engine after the other."""
    of_model = [stage for stage in STAGES if stage.planned_for == "network" and model.has_network]
    if model.definition:
        of_model = [stage for stage in of_model if not stage.needs_graph]
    of_engine = [_plan_of(stage) for stage in STAGES if stage.planned_for == "engines"]
    planned = [_plan_of(stage)(model) for stage in of_model]
    planned += [plan(model, engine) for engine in model.engines for plan in of_engine]
    declared = {"reads": tuple(model.spec["reads"]), "strict_reads": model.spec["strict_reads"]}
    for action in chain.from_iterable(planned):
        # only stages with sources run the user's code
        yield replace(action, **declared) if action.sources and any(declared.values()) else action


def _plan_of(stage: StageInfo) -> Callable[..., Iterator[Action]]:
    """Load the plan of a stage; the arguments are as ``planned_for`` says."""
    plan: Callable[..., Iterator[Action]]
    plan = getattr(import_module(f"{stage.package}.plan"), f"plan_{stage.name}")
    return plan


def _add_in_order(target: str, actions: Mapping[str, Action], ordered: dict[str, Action]) -> None:
    if target in actions and target not in ordered:
        for earlier in (*actions[target].after, *actions[target].order):
            _add_in_order(earlier, actions, ordered)
        ordered[target] = actions[target]
