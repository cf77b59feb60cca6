"""Plan of the evaluate stage: one engine on the data of `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.plan.action import Action
from buildsys.plan.model_plan import EnginePlan, ModelPlan
from buildsys.stages.predict.plan import evaluation_fields, evaluation_options, records_of


def plan_evaluate(model: ModelPlan, engine: EnginePlan) -> Iterator[Action]:
    """Plan the evaluation of ``engine``."""
    if not model.spec["evaluate"]:
        return
    elsewhere = bool(engine.toolchain)
    name, fields = model.name, evaluation_fields(model, () if elsewhere else engine.run_tools)
    yield engine.action(
        "evaluate",
        f"evaluate/{engine.name}.json",
        operators=engine.loaded_operators,
        options={
            "engine": engine.options,
            "evaluate": evaluation_options(model),
            "drop": model.spec["evaluate"]["drop"],
            "inputs": model.final.inputs,
        },
        inputs={**engine.files, "original": records_of(model)},
        after=(f"engine:{name}:{engine.name}", f"predict:{name}"),
        order=(f"verify:{name}:{engine.name}",),  # figures of a wrong engine are worthless
        peer_tools=(*engine.toolchain_tools, *engine.run_tools) if elsewhere else (),
        **fields,
    )
