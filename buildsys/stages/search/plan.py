"""Plan of the search stage: nodes to keep in fp32 for engines with ``precision: auto``."""

from collections.abc import Iterator

from buildsys.manifest.backend_choices import QUANTIZED
from buildsys.plan.action import Action
from buildsys.plan.model_plan import ModelPlan
from buildsys.stages.convert.plan import conversion_fields
from buildsys.stages.evaluate.plan import judging_fields


def plan_search(model: ModelPlan) -> Iterator[Action]:
    """Plan one search per precision and limits.

    It sees what ``convert`` sees, and nothing of the engine or of this machine's speed: engines of
    several backends share its list, and a list from a shared store is valid everywhere.
    """
    for conversion in model.searches:
        fields = conversion_fields(model, conversion)
        bounds = {name: bound for name, bound in model.spec["search"].items() if name != "limit"}
        fields["options"] = {**fields["options"], "search": bounds}
        if conversion.by_metric:
            own = judging_fields(model, "search", conversion.precision in QUANTIZED)
            for name in ("options", "inputs"):
                fields[name] = {**fields[name], **own.pop(name)}
            fields |= {name: (*fields.get(name, ()), *part) for name, part in own.items()}
            fields["code"] = ("buildsys.stages.search.by_metric",)
        yield model.action(
            "search",
            f"search/{conversion.variant}/search.json",
            conversion.variant,
            **fields,
            outputs={"nodes": conversion.nodes},
        )
