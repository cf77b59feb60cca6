"""Plan of the verify stage: one engine against the golden outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from buildsys.plan.action import Action
from buildsys.plan.model_plan import FULL_PRECISION, QUANTIZED, EnginePlan, ModelPlan


def plan_verify(model: ModelPlan, engine: EnginePlan) -> Iterator[Action]:
    """Plan the check of ``engine``."""
    name, final, operators = model.name, model.final, engine.loaded_operators
    further = _further_cases(model, engine)
    plugins = ["python"] if operators.sources else []
    tools = ["numpy", *engine.run_tools, *plugins, *engine.toolchain_tools]
    # a graph shows how its outputs are made
    assembled = {} if model.definition else {"assembled": model.final_assembled}
    upstream = [f"engine:{name}:{engine.name}", final.golden_target]
    upstream += [model.final_assembled_target] if assembled else []
    yield model.action(
        "verify",
        f"verify/{engine.name}.json",
        engine.name,
        owner=engine.spec,
        operators=operators,
        options={
            "engine": engine.options,
            "tolerance": engine.tolerance,
            "cases": engine.cases,
            **({"further": further} if further else {}),
            **final.compare,
        },
        inputs={
            **engine.files,
            **assembled,
            **final.golden(engine.cases),
            **final.golden(further.get("cases", ()), optional=True),
        },
        after=upstream,
        code=engine.backend_code,
        packages=engine.backend_packages,
        tools=tools,
        toolchain=engine.toolchain,
        devices=engine.devices,
        environment=engine.environment,
        server=engine.server,
        alone_on_gpu=engine.on_gpu,  # it would disturb whoever times there
        doc=f"check the engine {engine.name} of {name} against the golden outputs",
    )


def _further_cases(model: ModelPlan, engine: EnginePlan) -> dict[str, Any]:
    """List the further cases to verify with the shapes of the inputs, or {}.

    Extreme values exceed the range of narrow floats, and the ranges of a calibration are those
    of its data: the limits of these engines are for ordinary values.
    """
    names = model.further_names if model.final.has_further else []
    if engine.precision != FULL_PRECISION:
        names = [name for name in names if name.startswith(("drawn", "seed"))]
    if not names or engine.precision in QUANTIZED or engine.calibrates:
        return {}
    shapes = {name: tensor["shape"] for name, tensor in model.final.inputs.items()}
    return {"cases": names, "shapes": shapes}
