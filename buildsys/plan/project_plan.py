"""The targets of a whole project, each model planned when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from buildsys.plan.action import Action
from buildsys.plan.model_plan import plan_model
from buildsys.plan.tensorrt_typing import VersionOf, unknown_version

if TYPE_CHECKING:
    from buildsys.manifest.project import ResolvedModel


class ProjectPlan(Mapping[str, Action]):
    """Target -> action, in the order of the models and of each model's stages."""

    def __init__(
        self, models: Mapping[str, ResolvedModel], version_of: VersionOf = unknown_version
    ) -> None:
        self._models = models
        self._version_of = version_of
        self._planned: dict[str, dict[str, Action]] = {}

    def of(self, model: str) -> Mapping[str, Action]:
        """Return one model's part of the plan, nothing for a model that does not exist."""
        planned = self._planned.get(model)
        if planned is None:
            if model not in self._models:
                return {}
            planned = {
                action.target: action
                for action in plan_model(self._models[model].data, self._version_of)
            }
            self._planned[model] = planned
        return planned

    def __getitem__(self, target: str) -> Action:
        return self.of(model_of(target))[target]

    def __iter__(self) -> Iterator[str]:
        for model in self._models:
            yield from self.of(model)

    def __len__(self) -> int:
        return sum(len(self.of(model)) for model in self._models)


def model_of(target: str) -> str:
    """Return the model that a target belongs to."""
    return (*target.split(":", 2), "")[1]
