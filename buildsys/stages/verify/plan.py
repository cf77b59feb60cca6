"""Plan of the verify stage: one engine against the golden outputs."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.plan.action import Action, FileRef
from buildsys.plan.model_plan import EnginePlan, ModelPlan


def plan_verify(model: ModelPlan, engine: EnginePlan) -> Iterator[Action]:
    """Plan the check of ``engine``."""
    name, final, operators = model.name, model.final, engine.loaded_operators
    further = engine.further_cases(model)
    plugins = ["python"] if operators.sources else []
    tools = ["numpy", *engine.run_tools, *plugins, *engine.toolchain_tools]
    # a graph shows how its outputs are made
    assembled = {} if model.definition else {"assembled": model.final_assembled}
    upstream = [f"engine:{name}:{engine.name}", final.golden_target]
    upstream += [model.final_assembled_target] if assembled else []
    yield Action(
        **model.fields("verify", engine.name, engine.spec),
        options={
            "engine": engine.options,
            "tolerance": engine.tolerance,
            "cases": engine.cases,
            **({"further": further} if further else {}),
            **final.compare,
            **operators.options,
        },
        inputs={
            **engine.files,
            **assembled,
            **final.golden(engine.cases),
            **final.golden(further.get("cases", ()), optional=True),
            **operators.inputs,
        },
        outputs={"result": FileRef(f"{name}/verify/{engine.name}.json")},
        sources=operators.sources,
        after=tuple(dict.fromkeys(upstream)),
        code=("buildsys.stages.verify.stage", *engine.backend_code),
        packages=engine.backend_packages,
        tools=tuple(dict.fromkeys(tools)),
        toolchain=engine.toolchain,
        devices=engine.devices,
        environment=engine.environment,
        server=engine.server,
        alone_on_gpu=engine.on_gpu,  # it would disturb whoever times there
        doc=f"check the engine {engine.name} of {name} against the golden outputs",
    )
