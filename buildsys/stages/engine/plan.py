"""Plan of the engine stage: one engine from a graph."""

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.plan.action import Action, FileRef
from buildsys.plan.custom_operators import NO_OPERATORS
from buildsys.plan.graph_points import GraphPoint
from buildsys.plan.model_plan import EnginePlan, ModelPlan
from buildsys.system.user_modules import source_of


def plan_engine(model: ModelPlan, engine: EnginePlan) -> Iterator[Action]:
    """Plan the build of ``engine``."""
    spec, name, served = model.spec, model.name, model.served
    folder = f"{name}/engine/{engine.name}"
    takes_program = engine.description.takes_program
    operators = NO_OPERATORS if takes_program else model.operators.use(engine.backend)
    options: dict[str, Any] = {"engine": engine.options}
    if model.images:
        options["images"] = model.images
    batches, cache, after = {}, {}, []
    if engine.calibrates:
        algorithm = {"algorithm": spec["calibration"]["algorithm"]}
        options["calibration"] = algorithm if engine.description.calibrators else {}
        batches, after = model.calibrated("batches"), [f"calibrate:{name}"]
        cache = {"calibration": FileRef(f"{folder}/calibration.cache", optional=True)}
    tools = [engine.description.distribution]
    tools += engine.description.build_tools(engine.spec)
    nodes = {}
    if engine.search and not engine.conversion:  # the builder rounds all other nodes
        nodes = {"nodes": engine.search.nodes}
        after = [*after, engine.search.search_target]
    if engine.description.takes_ranges:
        spans = {
            name: {
                **{point: span[point] for point in ("min", "opt", "max")},
                **({"multiple_of": step} if (step := _step(span)) > 1 else {}),
            }
            for name, span in served.dims.items()
        }
        options["dims"] = spans if engine.spec.get("profiles") is None else {}
        options["inputs"] = served.inputs
    elif served.dims:  # the library would take any size
        options["ranges"] = _ranges(served)
    hook = engine.spec.get("network")  # changes the network before it is built
    called = [hook] if hook else []
    weights = {}
    if source := model.definition:
        called.append(source["tensorrt"])
        fields = ("shape", "dtype")
        options["definition"] = {
            "function": source["tensorrt"],
            "kwargs": source["kwargs"],
            "outputs": {n: {f: t[f] for f in fields} for n, t in spec["outputs"].items()},
        }
        if file := source["weights"]:
            options["definition"]["weights"] = file["file"]
            weights = {file["file"]: file["sha256"]}
    tools += [*(["python"] if called else []), *operators.tools, *engine.toolchain_tools]
    yield engine.action(
        "engine",
        f"engine/{engine.name}/engine.json",
        operators=operators,
        options=options,
        inputs={**engine.source, **nodes, **batches},
        outputs={**engine.loaded_operators.inputs, **engine.files, **cache},
        sources=[*map(source_of, called)],
        weights=weights,
        after=(engine.source_target, *after),
        tools=tools,
        devices=(
            *engine.devices,
            *(("cores",) if engine.description.counts_cores(engine.spec) else ()),
        ),
        advisory={"origins": model.program_origins} if takes_program else model.origins,
        required=engine.spec["required"],
        refits=bool(engine.spec.get("refit")),
    )


def _ranges(graph: GraphPoint) -> dict[str, list[Any]]:
    """List the shape of each input, with the sizes that vary as in engine.json."""
    spans: dict[str, list[Any]] = {}
    for name, span in graph.dims.items():
        step = _step(span)
        spans[name] = [span["min"], span["max"], *([name, step] if step > 1 else [])]
    return {
        name: [spans.get(size, size) for size in port["shape"]]
        for name, port in graph.inputs.items()
    }


def _step(span: Mapping[str, Any]) -> int:
    return span.get("multiple_of") or 1
