"""Plan of the evaluate stage: one engine on the data of `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.plan.action import Action
from buildsys.plan.model_plan import EnginePlan, ModelPlan
from buildsys.plan.network import data_files
from buildsys.stages.calibrate.plan import calibration_data
from buildsys.stages.predict.plan import evaluation_fields, evaluation_options, records_of


def plan_evaluate(model: ModelPlan, engine: EnginePlan) -> Iterator[Action]:
    """Plan the evaluation of ``engine``."""
    if not model.spec["evaluate"]:
        return
    elsewhere = bool(engine.toolchain)
    name, fields = model.name, evaluation_fields(model, () if elsewhere else engine.run_tools)
    batches, images, after = {}, {}, []
    if engine.needs_ranges or engine.calibrates:  # evaluated on other samples
        entries = calibration_data(model).items()
        images = {tensor: entry for tensor, entry in entries if "images" in (entry or ())}
        batches, after = model.calibrated("batches"), [f"calibrate:{name}"]
        fields["sources"] = (*fields["sources"], *data_files(images.values()))
    yield engine.action(
        "evaluate",
        f"evaluate/{engine.name}.json",
        operators=engine.loaded_operators,
        options={
            "engine": engine.options,
            "evaluate": evaluation_options(model),
            "drop": model.spec["evaluate"]["drop"],
            "inputs": model.final.inputs,
            **({"calibration_images": images} if batches else {}),
        },
        inputs={**engine.files, "original": records_of(model), **batches},
        after=(f"engine:{name}:{engine.name}", f"predict:{name}", *after),
        order=(f"verify:{name}:{engine.name}",),  # figures of a wrong engine are worthless
        peer_tools=(*engine.toolchain_tools, *engine.run_tools) if elsewhere else (),
        **fields,
    )
