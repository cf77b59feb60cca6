"""Plan of the evaluate stage: one engine on the data of `evaluate`."""

from collections.abc import Iterator
from typing import Any

from buildsys.plan.action import Action
from buildsys.plan.model_plan import EnginePlan, ModelPlan
from buildsys.plan.network import data_files
from buildsys.stages.calibrate.plan import calibration_data
from buildsys.stages.predict.plan import evaluation_fields, evaluation_options, records_of


def plan_evaluate(model: ModelPlan, engine: EnginePlan) -> Iterator[Action]:
    """Plan the evaluation of ``engine``."""
    if not model.spec["evaluate"]:
        return
    name, elsewhere = model.name, bool(engine.toolchain)
    by_metric = any(search.by_metric for search in model.searches)  # one half: comparable engines
    is_calibrated = engine.needs_ranges or engine.calibrates
    fields = judging_fields(model, "rest" if by_metric else "", is_calibrated)
    images = {"images": list(model.images)} if model.images else {}
    yield engine.action(
        "evaluate",
        f"evaluate/{engine.name}.json",
        operators=engine.loaded_operators,
        options={"engine": engine.options, **images, **fields.pop("options")},
        inputs={**engine.files, **fields.pop("inputs")},
        after=(f"engine:{name}:{engine.name}", *fields.pop("after")),
        order=(f"verify:{name}:{engine.name}",),  # figures of a wrong engine are worthless
        tools=(*fields.pop("tools"), *(() if elsewhere else engine.run_tools)),
        peer_tools=(*engine.toolchain_tools, *engine.run_tools) if elsewhere else (),
        **fields,
    )


def judging_fields(model: ModelPlan, half: str, is_calibrated: bool) -> dict[str, Any]:
    """Collect what a verdict on the metric depends on, for all samples or a half.

    Calibration may have seen none of the samples.
    """
    batches, images, after = {}, {}, [f"predict:{model.name}"]
    if is_calibrated:
        entries = calibration_data(model).items()
        images = {tensor: entry for tensor, entry in entries if "images" in (entry or ())}
        batches, after = model.calibrated("batches"), [*after, f"calibrate:{model.name}"]
    fields = evaluation_fields(model, ())
    return {
        **fields,
        "sources": (*fields["sources"], *data_files(images.values())),
        "options": {
            "evaluate": evaluation_options(model, half),
            "drop": model.spec["evaluate"]["drop"],
            "inputs": model.final.inputs,
            **({"calibration_images": images} if batches else {}),
        },
        "inputs": {"original": records_of(model), **batches},
        "after": after,
    }
