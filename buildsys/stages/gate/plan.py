"""Plan of the gate stage: one engine against limits and its baseline."""

from collections.abc import Iterator
from typing import Any

from buildsys.plan.action import Action, BaselineRef, FileRef
from buildsys.plan.model_plan import ONNXRUNTIME, EnginePlan, ModelPlan
from buildsys.stages.bench.plan import GPU_CLOCK, timed_fields

_TIMED = ("latency", "throughput", "memory")  # measured in separate processes


def plan_gate(model: ModelPlan, engine: EnginePlan) -> Iterator[Action]:
    """Plan the gates of ``engine``, if it has any."""
    if not engine.gates:
        return
    name, final, section = model.name, model.final, engine.gates
    gates = {metric: limit for metric, limit in section.items() if isinstance(limit, dict)}
    options: dict[str, Any] = {"gates": gates, "engine": engine.options}
    inputs = {**engine.files}
    after = [f"engine:{name}:{engine.name}"]
    if any(metric in gates for metric in _TIMED):
        bench = model.spec["bench"]
        options |= {"rounds": section["rounds"], "duration": section["duration"]}
        options["warmup"] = bench["warmup"]
        case = "opt" if "opt" in bench["cases"] else bench["cases"][0]
        cases = final.cases([case])
        options["case"] = next(iter(cases))
        inputs |= final.golden(cases)
        after.append(final.golden_target)
        if engine.on_gpu and engine.backend != ONNXRUNTIME:
            options["gpu"] = {field: bench[field] for field in GPU_CLOCK}
    if "build_time" in gates:
        inputs["built"] = FileRef(f"{name}/engine/{engine.name}/engine.json")
    if "error" in gates:
        inputs["verified"] = FileRef(f"{name}/verify/{engine.name}.json")
    if "accuracy" in gates:
        inputs["evaluated"] = FileRef(f"{name}/evaluate/{engine.name}.json")
        after.append(f"evaluate:{name}:{engine.name}")
    baseline = None
    if section["engine"]:
        other = next(e for e in model.engines if e.name == section["engine"])
        options["baseline"] = {"name": other.name, "engine": other.options}
        inputs |= {f"baseline.{role}": ref for role, ref in other.files.items()}
        after.append(f"engine:{name}:{other.name}")
        if "build_time" in gates:
            inputs["baseline.built"] = FileRef(f"{name}/engine/{other.name}/engine.json")
        if "error" in gates:
            inputs["baseline.verified"] = FileRef(f"{name}/verify/{other.name}.json")
            after.append(f"verify:{name}:{other.name}")
        if "accuracy" in gates:
            inputs["baseline.evaluated"] = FileRef(f"{name}/evaluate/{other.name}.json")
            after.append(f"evaluate:{name}:{other.name}")
    else:
        path = engine.files["engine"].path
        baseline = BaselineRef(path, f"engine:{name}:{engine.name}")
    verify = f"verify:{name}:{engine.name}"
    yield engine.action(
        "gate",
        f"gate/{engine.name}.json",
        operators=engine.loaded_operators,
        options=options,
        inputs=inputs,
        after=(*after, verify) if "error" in gates else after,
        order=() if "error" in gates else (verify,),
        environment=(*engine.environment, "speed"),
        server="light",
        required=section["required"],
        baseline=baseline,
        **timed_fields(engine, ("python", "numpy")),
    )
