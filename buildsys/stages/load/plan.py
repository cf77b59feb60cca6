"""Plan of the load stage: one engine under the load of `bench.load`."""

from collections.abc import Iterator

from buildsys.plan.action import Action
from buildsys.plan.model_plan import EnginePlan, ModelPlan
from buildsys.stages.bench.plan import timed_fields


def plan_load(model: ModelPlan, engine: EnginePlan) -> Iterator[Action]:
    """Plan the load of ``engine``, if the manifest has any."""
    name, served, bench = model.name, model.served, model.spec["bench"]
    if not bench["load"]:
        return
    cases = served.cases(["opt" if "opt" in bench["cases"] else bench["cases"][0]])
    noise = bench["noise"] and {"other_load": bench["noise"]["other_load"]}
    options = {"engine": engine.options, "load": bench["load"], "noise": noise}
    yield engine.action(
        "load",
        f"load/{engine.name}.json",
        operators=engine.loaded_operators,
        options={
            **options,
            "case": next(iter(cases)),
            "inputs": served.inputs,
            "on_gpu": engine.on_gpu,
        },
        inputs={**engine.files, **served.golden(cases)},
        after=(f"engine:{name}:{engine.name}", served.golden_target),
        order=(f"verify:{name}:{engine.name}",),  # figures of a wrong engine are worthless
        environment=(*engine.environment, "speed"),
        server="light",
        **timed_fields(engine, ("python", "numpy")),
    )
