"""Targets of a whole project."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from buildsys.plan.action import Action
from buildsys.plan.engine_typing import VersionOf, unknown_version

if TYPE_CHECKING:
    from buildsys.manifest.project import ResolvedModel

# the first section in a resolved manifest that may decide a stage, after model, source, dims, …
_FIRST_OF_STAGES, _NO_NETWORK = ',"reads":', '"source":null'


class ProjectPlan(Mapping[str, Action]):
    """Target -> action; each model is planned on first use."""

    def __init__(
        self,
        models: Mapping[str, ResolvedModel],
        version_of: VersionOf = unknown_version,
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
            from buildsys.project.plan import plan_model  # 5 ms, not needed with nothing to do

            data = json.loads(self._models[model].text)  # which need not stay
            actions = plan_model(data, self._version_of)
            planned = self._planned[model] = {action.target: action for action in actions}
        return planned

    def targets(self, model: str) -> Sequence[str]:
        """Return the targets of one model."""
        return tuple(self.of(model))

    def stages(self) -> list[str]:
        """Return the stages of all models in the order of their targets.

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


def model_of(target: str) -> str:
    """Return the model of a target."""
    return (*target.split(":", 2), "")[1]
