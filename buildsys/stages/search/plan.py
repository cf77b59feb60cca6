"""Plan of the search stage: nodes to keep in fp32 for engines with ``precision: auto``."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.plan.action import Action
from buildsys.plan.model_plan import ModelPlan
from buildsys.stages.convert.plan import conversion_fields


def plan_search(model: ModelPlan) -> Iterator[Action]:
    """Plan one search per precision and limits.

    It sees what ``convert`` sees, and nothing of the engine or of this machine's speed: engines of
    several backends share its list, and a list from a shared store is valid everywhere.
    """
    for conversion in model.searches:
        fields = conversion_fields(model, conversion)
        fields["options"] = {**fields["options"], "search": model.spec["search"]}
        yield model.action(
            "search",
            f"search/{conversion.variant}/search.json",
            conversion.variant,
            **fields,
            outputs={"nodes": conversion.nodes},
        )
