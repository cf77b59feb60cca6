"""Plan of the bench stage: one engine timed against its baselines."""

from collections.abc import Iterable, Iterator
from typing import Any

from buildsys.plan.action import Action, FileRef
from buildsys.plan.model_plan import (
    FULL_PRECISION,
    ONNXRUNTIME,
    TORCH_BASELINES,
    EnginePlan,
    ModelPlan,
)

_PACE = ("duration", "warmup", "min_samples", "budget", "noise", "cold_start")
GPU_CLOCK = ("cuda_graph", "transfers", "in_flight", "wait")  # only for the GPU's own clock


def plan_bench(model: ModelPlan, engine: EnginePlan) -> Iterator[Action]:
    """Plan the benchmark of ``engine``."""
    name, served, section = model.name, model.served, model.spec["bench"]
    cases = served.cases(section["cases"])
    bench: dict[str, Any] = {field: section[field] for field in _PACE}
    bench["baselines"] = engine.baselines
    if engine.baselines and (engine.on_gpu or engine.baseline_precision != FULL_PRECISION):
        bench["precision"] = engine.baseline_precision
    if engine.on_gpu and engine.description.uses_gpu_clock(engine.spec):
        bench["gpu"] = {field: section[field] for field in GPU_CLOCK}
    options = {"engine": engine.options, "bench": bench, "cases": cases}
    inputs = {**engine.files, **served.golden(cases)}
    after = [f"engine:{name}:{engine.name}", served.golden_target]
    tools = ["python", "numpy"]  # the timed calls are made in Python
    torch = any(baseline in TORCH_BASELINES for baseline in engine.baselines)
    if torch:
        options["network"] = {**model.network.options, "outputs": {}}  # outputs are not checked
        compilers = {"torch_compile": "triton", "torch_tensorrt": "torch-tensorrt"}
        tools += [compilers[name] for name in compilers if name in engine.baselines]
        if served.golden_folder != model.exported.golden_folder:  # the network's inputs differ
            for case in cases:
                file = FileRef(f"{model.exported.golden_folder}/{model.exported.origins[case]}.npz")
                inputs[f"network.case.{case}"] = file
            after.append(model.exported.golden_target)
    if graph := engine.baseline_graph:
        inputs |= graph.files()
        after.append(graph.target)
        tools.append(ONNXRUNTIME)
    environment = ("onnxruntime", "speed") if engine.baseline_graph else ("speed",)
    yield engine.action(
        "bench",
        f"bench/{engine.name}.json",
        runs_network=torch,
        operators=engine.loaded_operators,
        options=options,
        inputs=inputs,
        after=after,
        order=(f"verify:{name}:{engine.name}",),  # figures of a wrong engine are worthless
        environment=(*engine.environment, *environment),
        **timed_fields(engine, tools),
        server="torch" if torch else "light",
    )


def timed_fields(engine: EnginePlan, tools: Iterable[str]) -> dict[str, Any]:
    """Collect the fields of an action that times an engine; ``tools`` run in this process."""
    runs_elsewhere = bool(engine.toolchain)
    return {
        "tools": (*tools, *(() if runs_elsewhere else engine.run_tools)),
        "peer_tools": (*engine.toolchain_tools, *engine.run_tools) if runs_elsewhere else (),
        "devices": tuple(dict.fromkeys(("cpu", "cores", *engine.devices))),
        "measures": True,
        "exclusive": not engine.on_gpu,
    }
