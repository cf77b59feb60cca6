"""Targets of a whole project, and the table of stages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from buildsys.manifest.surgery_interface import AFTER_EXPORT, AFTER_SIMPLIFY
from buildsys.plan.action import Action
from buildsys.plan.engine_typing import VersionOf, unknown_version
from buildsys.plan.graph_points import Spec
from buildsys.plan.model_plan import EnginePlan, ModelPlan
from buildsys.plan.stages.bench import plan_bench
from buildsys.plan.stages.calibrate import plan_calibrate
from buildsys.plan.stages.convert import plan_convert
from buildsys.plan.stages.engine import plan_engine
from buildsys.plan.stages.export import plan_export
from buildsys.plan.stages.gate import plan_gate
from buildsys.plan.stages.operators import plan_operators
from buildsys.plan.stages.reference import plan_reference
from buildsys.plan.stages.report import plan_report
from buildsys.plan.stages.simplify import plan_simplify
from buildsys.plan.stages.surgery import plan_surgery
from buildsys.plan.stages.validate import plan_validate
from buildsys.plan.stages.verify import plan_verify

if TYPE_CHECKING:
    from buildsys.manifest.project import ResolvedModel

MODEL_STAGES = (
    plan_operators,
    plan_export,
    plan_reference,
    partial(plan_surgery, when=AFTER_EXPORT),
    plan_simplify,
    partial(plan_surgery, when=AFTER_SIMPLIFY),
    plan_calibrate,
    plan_convert,
    plan_validate,
)
# sections that decide no stage
_WITHOUT_STAGES = {
    *("model", "description", "owner", "tags", "source", "inputs", "outputs", "dims", "timeout"),
}
ENGINE_STAGES: tuple[Callable[[ModelPlan, EnginePlan], Action | None], ...] = (
    plan_engine,
    plan_verify,
    plan_bench,
    plan_gate,
)  # then plan_report, of all the others


def plan_model(spec: Spec, version_of: VersionOf = unknown_version) -> tuple[Action, ...]:
    """Return the actions of one model in the order of dependencies.

    ``version_of`` returns the TensorRT version that builds an engine, as it decides which graph
    the engine is built from.
    """
    model = ModelPlan(spec, version_of)
    actions = [action for plan in MODEL_STAGES for action in plan(model)]
    planned = (plan(model, engine) for engine in model.engines for plan in ENGINE_STAGES)
    actions += [action for action in planned if action is not None]
    declared = {"reads": tuple(spec["reads"]), "strict_reads": spec["strict_reads"]}
    if any(declared.values()):  # stages with the user's code
        actions = [replace(each, **declared) if each.sources else each for each in actions]
    return (*actions, plan_report(model, actions))


class ProjectPlan(Mapping[str, Action]):
    """Target -> action; each model is planned on first use."""

    def __init__(
        self, models: Mapping[str, ResolvedModel], version_of: VersionOf = unknown_version
    ) -> None:
        self._models = models
        self._version_of = version_of
        self._planned: dict[str, dict[str, Action]] = {}

    def of(self, model: str) -> Mapping[str, Action]:
        """Return the plan of one model, empty for an unknown one."""
        planned = self._planned.get(model)
        if planned is None:
            if model not in self._models:
                return {}
            actions = plan_model(self._models[model].data, self._version_of)
            planned = self._planned[model] = {action.target: action for action in actions}
        return planned

    def stages(self) -> list[str]:
        """Return the stages of all models in the order of their targets.

        One model is planned for each combination of sections.
        """
        planned: dict[str, str] = {}
        for name, model in self._models.items():
            spec: Spec = json.loads(model.text)  # not kept: there may be thousands
            deciding = [item for item in spec.items() if item[0] not in _WITHOUT_STAGES]
            planned.setdefault(repr(deciding), name)
        actions = (action for name in planned.values() for action in self.of(name).values())
        return list(dict.fromkeys(action.stage for action in actions))

    def __getitem__(self, target: str) -> Action:
        return self.of(model_of(target))[target]

    def __iter__(self) -> Iterator[str]:
        for model in self._models:
            yield from self.of(model)

    def __len__(self) -> int:
        return sum(len(self.of(model)) for model in self._models)


def model_of(target: str) -> str:
    """Return the model of a target."""
    return (*target.split(":", 2), "")[1]
