"""Plan of the gate stage: one engine against limits and its baseline."""

from collections.abc import Iterator
from typing import Any

from buildsys.plan.action import Action, BaselineRef, FileRef
from buildsys.plan.model_plan import EnginePlan, ModelPlan
from buildsys.stages.bench.plan import GPU_CLOCK, timed_fields

# measured in separate processes
_TIMED = ("latency", "throughput", "memory", "load_time", "first_call")
_RECORDED = {  # others -> role, stage and file of the result that has them
    "build_time": ("built", "engine", "engine/{}/engine.json"),
    "error": ("verified", "verify", "verify/{}.json"),
    "accuracy": ("evaluated", "evaluate", "evaluate/{}.json"),
}


def plan_gate(model: ModelPlan, engine: EnginePlan) -> Iterator[Action]:
    """Plan the gates of ``engine``, if it has any."""
    if not engine.gates:
        return
    name, served, section = model.name, model.served, engine.gates
    gates = {metric: limit for metric, limit in section.items() if isinstance(limit, dict)}
    options: dict[str, Any] = {"gates": gates, "engine": engine.options}
    inputs = {**engine.files}
    after = [f"engine:{name}:{engine.name}"]
    if any(metric in gates for metric in _TIMED):
        bench = model.spec["bench"]
        options |= {"rounds": section["rounds"], "duration": section["duration"]}
        options["warmup"] = bench["warmup"]
        case = "opt" if "opt" in bench["cases"] else bench["cases"][0]
        cases = served.cases([case])
        options["case"] = next(iter(cases))
        inputs |= served.golden(cases)
        after.append(served.golden_target)
        if engine.on_gpu and engine.description.uses_gpu_clock(engine.spec):
            options["gpu"] = {field: bench[field] for field in GPU_CLOCK}
    recorded = [place for metric, place in _RECORDED.items() if metric in gates]
    for role, stage, path in recorded:
        inputs[role] = FileRef(f"{name}/{path.format(engine.name)}")
        after.append(f"{stage}:{name}:{engine.name}")
    baseline = None
    if section["engine"]:
        other = next(e for e in model.engines if e.name == section["engine"])
        options["baseline"] = {"name": other.name, "engine": other.options}
        inputs |= {f"baseline.{role}": ref for role, ref in other.files.items()}
        after.append(f"engine:{name}:{other.name}")
        for role, stage, path in recorded:
            inputs[f"baseline.{role}"] = FileRef(f"{name}/{path.format(other.name)}")
            after.append(f"{stage}:{name}:{other.name}")
    else:
        baseline = BaselineRef(engine.files["engine"].path, f"engine:{name}:{engine.name}")
    yield engine.action(
        "gate",
        f"gate/{engine.name}.json",
        operators=engine.loaded_operators,
        options=options,
        inputs=inputs,
        after=tuple(dict.fromkeys(after)),
        order=() if "error" in gates else (f"verify:{name}:{engine.name}",),
        environment=(*engine.environment, "speed"),
        server="light",
        required=section["required"],
        baseline=baseline,
        **timed_fields(engine, ("python", "numpy")),
    )
