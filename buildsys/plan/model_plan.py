"""From resolved manifests to actions. The only place that names targets and the paths they write.

An action's options are exactly the manifest fields that its stage uses: what is not passed here can
neither reach the stage nor make its target stale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.plan import bench as benching
from buildsys.plan import calibration, custom_operators, stage_inputs
from buildsys.plan.action import Action, FileRef
from buildsys.plan.artifacts import (
    Resolved,
    calibrated,
    calibration_cache,
    converted_graph,
    engine_path,
    engine_refs,
    exported_graph,
    golden_refs,
    golden_target,
    graph_before,
    onnx_refs,
    origins_ref,
    simplified_graph,
)
from buildsys.plan.conversions import conversions
from buildsys.plan.surgery_points import (
    AFTER_EXPORT,
    AFTER_SIMPLIFY,
    EXPORTED,
    cases_at,
    changes_golden,
    engine_cases,
    golden_cases_at,
    golden_point,
    point_before,
    steps_of,
)
from buildsys.plan.tensorrt_typing import (
    VersionOf,
    is_implicit,
    toolchain_of,
    unknown_version,
    with_typing,
)


def plan_model(spec: Resolved, version_of: VersionOf = unknown_version) -> tuple[Action, ...]:
    """Return the actions of one model, each after the ones that it reads from.

    ``version_of`` tells which TensorRT builds an engine: what it is built from depends on that.
    """
    return tuple(_actions(with_typing(spec, version_of)))


def _actions(spec: Resolved) -> Iterator[Action]:
    results: list[Action] = []
    for action in _stages(spec):
        results.append(action)
        yield action
    yield _report(spec, results)


def _stages(spec: Resolved) -> Iterator[Action]:
    if spec["ops"]:
        yield _operators(spec)
    yield _export(spec)
    yield _reference(spec)
    yield from _surgery(spec, AFTER_EXPORT)
    yield _simplify(spec)
    yield from _surgery(spec, AFTER_SIMPLIFY)
    yield from conversions(spec)
    yield _validate(spec)
    for engine in spec["engines"]:
        yield _engine(spec, engine)
        yield _verify(spec, engine)
        yield _bench(spec, engine)


def _operators(spec: Resolved) -> Action:
    model = spec["model"]
    return Action(
        target=custom_operators.operators_target(spec),
        stage="operators",
        model=model,
        variant="",
        options=custom_operators.operator_options(spec),
        inputs={},
        outputs=custom_operators.operator_outputs(spec),
        sources=custom_operators.operator_sources(spec),
        code=stage_inputs.STAGE_CODE["operators"],
        tools=custom_operators.operator_tools(spec),
        devices=custom_operators.operator_devices(spec),
        timeout_s=stage_inputs.timeout(spec, "operators"),
        doc=f"functions and libraries of the custom operators of {model}",
    )


def _export(spec: Resolved) -> Action:
    model = spec["model"]
    functions = (
        {"functions": custom_operators.functions_ref(spec)}
        if custom_operators.graph_functions(spec)
        else {}
    )
    return Action(
        target=f"export:{model}",
        stage="export",
        model=model,
        variant="",
        options=stage_inputs.export_options(spec),
        inputs=functions,
        outputs={
            "model": FileRef(f"{model}/export/model.onnx"),
            "model.data": FileRef(f"{model}/export/model.onnx.data", optional=True),
            **origins_ref(spec),
            "result": FileRef(f"{model}/export/export.json"),
        },
        sources=(*stage_inputs.network_sources(spec), *stage_inputs.taught_sources(spec)),
        weights=stage_inputs.weights_files(spec),
        after=(custom_operators.operators_target(spec),) if functions else (),
        code=stage_inputs.STAGE_CODE["export"],
        tools=("onnx", *stage_inputs.network_tools(spec), *stage_inputs.exporter_tools(spec)),
        environment=() if "onnx" in spec["source"] else ("torch",),
        timeout_s=stage_inputs.timeout(spec, "export"),
        doc=f"export {model} to ONNX",
    )


def _reference(spec: Resolved) -> Action:
    model = spec["model"]
    cases = golden_cases_at(spec, EXPORTED)
    options = {**stage_inputs.network_options(spec), "cases": cases}
    options["data"] = {name: tensor["data"] for name, tensor in spec["inputs"].items()}
    taken = stage_inputs.oracle_operators(spec)
    return Action(
        target=f"reference:{model}",
        stage="reference",
        model=model,
        variant="",
        options={**options, **taken.options},
        inputs=taken.inputs,
        outputs={
            **golden_refs(spec, cases, EXPORTED),
            "result": FileRef(f"{model}/reference/reference.json"),
        },
        sources=(*stage_inputs.network_sources(spec), *stage_inputs.data_sources(spec)),
        weights=stage_inputs.weights_files(spec),
        after=taken.after,
        code=stage_inputs.STAGE_CODE["reference"],
        tools=(
            *(
                "numpy",
                *stage_inputs.network_tools(spec),
                *stage_inputs.oracle_tools(spec),
                *stage_inputs.small_float_tools(spec),
            ),
            *calibration.image_tools(spec),
        ),
        environment=("onnxruntime",) if "onnx" in spec["source"] else ("torch",),
        timeout_s=stage_inputs.timeout(spec, "reference"),
        doc=f"golden inputs and outputs of {model}",
    )


def _surgery(spec: Resolved, when: str) -> Iterator[Action]:
    """Yield the target that changes one graph, where the manifest has steps for it."""
    steps, model = steps_of(spec, when), spec["model"]
    if not steps:
        return
    folder, before = f"{model}/surgery/{when}", point_before(when)
    options = stage_inputs.surgery_options(spec, when)
    taken = dict.fromkeys(case["golden"] for case in options["cases"].values())
    operations = custom_operators.taken(spec, custom_operators.MAIN)
    yield Action(
        target=f"surgery:{model}:{when}",
        stage="surgery",
        model=model,
        variant=when,
        options={**options, **operations.options},
        inputs={
            **graph_before(spec, when).refs(),
            **golden_refs(spec, taken, before),
            **operations.inputs,
        },
        outputs={
            **onnx_refs(folder),
            **(golden_refs(spec, options["cases"], when) if changes_golden(steps) else {}),
            "result": FileRef(f"{folder}/surgery.json"),
        },
        sources=stage_inputs.surgery_sources(spec, when),
        after=(graph_before(spec, when).target, golden_target(spec, before), *operations.after),
        code=stage_inputs.STAGE_CODE["surgery"],
        tools=stage_inputs.surgery_tools(spec, when),
        environment=("onnxruntime",),
        timeout_s=stage_inputs.timeout(spec, "surgery"),
        doc=f"change the graph of {model} {when.replace('_', ' ')}",
    )


def _simplify(spec: Resolved) -> Action:
    model, tool = spec["model"], spec["simplify"]["tool"]
    taken = (
        custom_operators.taken(spec, custom_operators.MAIN)
        if tool != "none"
        else custom_operators.NOTHING
    )
    return Action(
        target=f"simplify:{model}",
        stage="simplify",
        model=model,
        variant="",
        options={
            "simplify": spec["simplify"],
            "cases": stage_inputs.simplify_cases(spec),
            "inputs": stage_inputs.graph_inputs(spec, AFTER_EXPORT),
            **taken.options,
        },
        inputs={**exported_graph(spec).refs(), **taken.inputs},
        outputs={
            "model": FileRef(f"{model}/simplify/model.onnx"),
            "model.data": FileRef(f"{model}/simplify/model.onnx.data", optional=True),
            "result": FileRef(f"{model}/simplify/graph.json"),
        },
        after=(exported_graph(spec).target, *taken.after),
        code=stage_inputs.STAGE_CODE["simplify"],
        tools=("onnx", *stage_inputs.simplify_tools(spec)),
        environment=(tool, "onnxruntime") if tool != "none" else (),
        timeout_s=stage_inputs.timeout(spec, "simplify"),
        doc=f"simplify the graph of {model}",
    )


def _validate(spec: Resolved) -> Action:
    model = spec["model"]
    cases = cases_at(spec, AFTER_EXPORT, spec["validate"]["cases"])
    options: dict[str, Any] = {"cases": cases}
    refs, golden = golden_refs(spec, cases, AFTER_EXPORT), [golden_target(spec, AFTER_EXPORT)]
    if golden_point(spec, AFTER_SIMPLIFY) != golden_point(
        spec, AFTER_EXPORT
    ):  # the simplified graph has its own
        options["simplified_cases"] = cases_at(spec, AFTER_SIMPLIFY, spec["validate"]["cases"])
        refs |= golden_refs(spec, options["simplified_cases"], prefix="simplified.")
        golden.append(golden_target(spec))
    tolerance = {field: spec["validate"][field] for field in ("rtol", "cosine", "atol", "top1")}
    taken = custom_operators.taken(spec, custom_operators.MAIN)
    return Action(
        target=f"validate:{model}",
        stage="validate",
        model=model,
        variant="",
        options={"tolerance": tolerance, **options, **taken.options},
        inputs={
            **{f"exported.{role}": ref for role, ref in exported_graph(spec).refs().items()},
            **{f"simplified.{role}": ref for role, ref in simplified_graph(spec).refs().items()},
            **refs,
            **taken.inputs,
        },
        outputs={"result": FileRef(f"{model}/validate/result.json")},
        after=(
            *dict.fromkeys((exported_graph(spec).target, *golden, simplified_graph(spec).target)),
            *taken.after,
        ),
        code=stage_inputs.STAGE_CODE["validate"],
        tools=("onnxruntime", "numpy", *stage_inputs.small_float_tools(spec), *taken.tools),
        environment=("onnxruntime",),
        timeout_s=stage_inputs.timeout(spec, "validate"),
        doc=f"check {model} in ONNX Runtime against PyTorch",
    )


def _engine(spec: Resolved, engine: Mapping[str, Any]) -> Action:
    model, name = spec["model"], engine["name"]
    graph = (
        converted_graph(spec, engine["precision"])
        if stage_inputs.is_converted(engine)
        else simplified_graph(spec)
    )
    by_builder = is_implicit(engine)
    taken = custom_operators.taken(spec, engine["backend"])
    return Action(
        target=f"engine:{model}:{name}",
        stage="engine",
        model=model,
        variant=name,
        options={
            "engine": stage_inputs.engine_fields(engine),
            **(
                {"calibration": {"algorithm": spec["calibration"]["algorithm"]}}
                if by_builder
                else {}
            ),
            **stage_inputs.profile_options(spec, engine),
            **taken.options,
        },
        inputs={
            **graph.refs(),
            **(calibrated(spec, "batches") if by_builder else {}),
            **taken.inputs,
        },
        outputs={
            **custom_operators.engine_libraries(spec, engine),
            "engine": FileRef(engine_path(model, engine), optional=True),
            "engine.data": FileRef(f"{engine_path(model, engine)}.data", optional=True),
            **(calibration_cache(model, engine) if by_builder else {}),
            "result": FileRef(f"{model}/engine/{name}/engine.json"),
        },
        sources=tuple(dict.fromkeys((*taken.sources, *stage_inputs.network_hooks(engine)))),
        after=(graph.target, *((f"calibrate:{model}",) if by_builder else ()), *taken.after),
        code=stage_inputs.backend_code("engine", engine),
        tools=tuple(
            dict.fromkeys(
                (
                    *stage_inputs.engine_tools(engine),
                    *taken.tools,
                    *stage_inputs.toolchain_tools(engine),
                )
            )
        ),
        toolchain=toolchain_of(spec, engine),
        devices=(*stage_inputs.devices(engine), *stage_inputs.cores(engine)),
        environment=stage_inputs.engine_environment(engine),
        advisory=origins_ref(spec),
        required=engine["required"],
        alone_on_gpu=stage_inputs.is_on_gpu(engine),  # a builder times tactics
        timeout_s=stage_inputs.timeout(spec, "engine"),
        doc=f"build the engine {name} of {model}",
    )


def _verify(spec: Resolved, engine: Mapping[str, Any]) -> Action:
    model, name = spec["model"], engine["name"]
    cases = engine_cases(spec, engine)
    tolerance = engine["tolerance"] or spec["verify"][engine["precision"]]
    taken = custom_operators.loaded(spec, engine)
    return Action(
        target=f"verify:{model}:{name}",
        stage="verify",
        model=model,
        variant=name,
        options={
            "engine": stage_inputs.engine_fields(engine),
            "tolerance": tolerance,
            "cases": cases,
            **taken.options,
        },
        inputs={**engine_refs(model, engine), **golden_refs(spec, cases), **taken.inputs},
        outputs={"result": FileRef(f"{model}/verify/{name}.json")},
        sources=taken.sources,
        after=(f"engine:{model}:{name}", golden_target(spec)),
        code=stage_inputs.backend_code("verify", engine),
        tools=tuple(
            dict.fromkeys(
                (
                    "numpy",
                    *stage_inputs.run_tools(spec, engine),
                    *taken.plugin_tools,
                    *stage_inputs.toolchain_tools(engine),
                )
            )
        ),
        toolchain=toolchain_of(spec, engine),
        devices=stage_inputs.devices(engine),
        environment=stage_inputs.engine_environment(engine),
        alone_on_gpu=stage_inputs.is_on_gpu(engine),  # it would disturb who times
        timeout_s=stage_inputs.timeout(spec, "verify"),
        doc=f"check the engine {name} of {model} against the golden outputs",
    )


def _bench(spec: Resolved, engine: Mapping[str, Any]) -> Action:
    model, name = spec["model"], engine["name"]
    cases = cases_at(spec, AFTER_SIMPLIFY, spec["bench"]["cases"])
    with_torch, graph = benching.has_torch(spec, engine), benching.baseline_graph(spec, engine)
    taken, on_gpu = custom_operators.loaded(spec, engine), stage_inputs.is_on_gpu(engine)
    bench = benching.bench_options(spec, engine)
    run_tools, toolchain = stage_inputs.run_tools(spec, engine), toolchain_of(spec, engine)
    options = {
        "engine": stage_inputs.engine_fields(engine),
        "bench": bench,
        "cases": cases,
        **taken.options,
    }
    if with_torch:
        options["network"] = {
            **stage_inputs.network_options(spec),
            "outputs": {},
        }  # what it returns is not looked at
    originals = benching.network_inputs(spec, cases) if with_torch else {}
    read = {**originals, **(graph.refs() if graph else {})}
    return Action(
        target=f"bench:{model}:{name}",
        stage="bench",
        model=model,
        variant=name,
        options=options,
        inputs={**engine_refs(model, engine), **golden_refs(spec, cases), **read, **taken.inputs},
        outputs={"result": FileRef(f"{model}/bench/{name}.json")},
        sources=(*(stage_inputs.network_sources(spec) if with_torch else ()), *taken.sources),
        weights=stage_inputs.weights_files(spec) if with_torch else {},
        after=(
            f"engine:{model}:{name}",
            golden_target(spec),
            *((f"reference:{model}",) if originals else ()),
            *((graph.target,) if graph else ()),
        ),
        order=(f"verify:{model}:{name}",),  # the figures of a wrong engine are worth nothing
        code=stage_inputs.backend_code("bench", engine),
        # the calls that are timed are made in Python
        tools=(
            "python",
            "numpy",
            *benching.baseline_tools(spec, engine),
            *(() if toolchain else run_tools),
        ),
        toolchain=toolchain,
        peer_tools=(*stage_inputs.toolchain_tools(engine), *run_tools) if toolchain else (),
        devices=tuple(dict.fromkeys(("cpu", "cores", *stage_inputs.devices(engine)))),
        environment=tuple(
            dict.fromkeys(
                (
                    *stage_inputs.engine_environment(engine),
                    *benching.baseline_environment(spec, engine),
                    "speed",
                )
            )
        ),
        measures=True,
        exclusive=not on_gpu,
        alone_on_gpu=on_gpu,
        timeout_s=stage_inputs.timeout(spec, "bench"),
        doc=f"benchmark the engine {name} of {model}",
    )


def _report(spec: Resolved, results: list[Action]) -> Action:
    model = spec["model"]
    return Action(
        target=f"report:{model}",
        stage="report",
        model=model,
        variant="",
        options={"manifest": stage_inputs.reported(spec)},
        inputs={
            **{action.target: action.outputs["result"] for action in results},
            **{
                f"graph:{made.target}": made.outputs["model"]
                for made in results
                if made.stage in stage_inputs.GRAPH_STAGES
            },
        },
        outputs={
            "result": FileRef(f"{model}/report/report.json"),
            **(
                {"markdown": FileRef(f"{model}/report/report.md")}
                if "markdown" in spec["report"]["formats"]
                else {}
            ),
        },
        after=tuple(action.target for action in results),
        code=stage_inputs.STAGE_CODE["report"],
        tools=("onnx",),
        timeout_s=stage_inputs.timeout(spec, "report"),
        doc=f"report on {model}",
    )
