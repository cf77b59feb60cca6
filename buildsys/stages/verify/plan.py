"""Plan of the verify stage: one engine against the golden outputs."""

from collections.abc import Iterator
from typing import Any

from buildsys.manifest.backend_choices import QUANTIZED
from buildsys.plan.action import Action
from buildsys.plan.graph_points import GOLDEN
from buildsys.plan.model_plan import FULL_PRECISION, EnginePlan, ModelPlan


def plan_verify(model: ModelPlan, engine: EnginePlan) -> Iterator[Action]:
    """Plan the check of ``engine``."""
    served, operators = model.served, engine.loaded_operators
    further, uncompared = _further_cases(model, engine), model.spec["validate"]["uncompared"]
    is_low = engine.precision != FULL_PRECISION
    plugins = ["python"] if operators.sources else []
    tools = ["numpy", *engine.run_tools, *plugins, *engine.toolchain_tools]
    # a graph shows how its outputs are made
    assembled = {} if model.definition else {"assembled": served.assembling.assembled}
    upstream = [f"engine:{model.name}:{engine.name}", served.golden_target]
    upstream += [served.assembling.target] if assembled else []
    yield engine.action(
        "verify",
        f"verify/{engine.name}.json",
        operators=operators,
        options={
            "engine": engine.options,
            "tolerance": engine.tolerance,
            **({"limit": "metric"} if engine.search and engine.search.by_metric else {}),
            "cases": engine.cases,
            **({"further": further} if further else {}),
            **({"uncompared": uncompared} if uncompared else {}),
            **served.compare,
        },
        inputs={
            **engine.files,
            **assembled,
            **served.golden(engine.cases),
            **(served.golden_samples(model.samples) if is_low else {}),
            **served.golden(further.get("cases", ()), optional=True),
        },
        after=upstream,
        tools=tools,
    )


def _further_cases(model: ModelPlan, engine: EnginePlan) -> dict[str, Any]:
    """List the further cases to verify with the shapes of the inputs, or {}.

    Extreme values exceed the range of narrow floats, and the ranges of a calibration are those
    of its data: the limits of these engines are for ordinary values.
    """
    names = model.further_names if model.served.has_further else []
    if engine.precision != FULL_PRECISION:
        names = [name for name in names if name.startswith(("drawn", "seed", GOLDEN))]
    if engine.precision in QUANTIZED or engine.calibrates:
        names = [name for name in names if name.startswith(GOLDEN)]
    if not names:
        return {}
    shapes = {name: tensor["shape"] for name, tensor in model.served.inputs.items()}
    return {"cases": names, "shapes": shapes}
