"""From resolved manifests to actions. The only place that names targets and the paths they write.

An action's options are exactly the manifest fields that its stage uses: what is not passed here can
neither reach the stage nor make its target stale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.graph.action import Action, FileRef
from buildsys.graph.cases import example_dims, shape_cases

Resolved = Mapping[str, Any]  # one manifest, resolved and validated, as plain JSON values

_STAGE_CODE = {stage: (f"buildsys.stages.{stage}",) for stage in (
    "export", "reference", "simplify", "convert", "validate", "engine", "verify", "bench", "report",
)}  # fmt: skip
_BACKEND_TOOL = {"onnxruntime": "onnxruntime", "tensorrt_rtx": "tensorrt_rtx"}
_FULL_PRECISION = "fp32"
_POINTS = ("min", "opt", "max")


def plan_model(spec: Resolved) -> tuple[Action, ...]:
    """Return the actions of one model, each after the ones that it reads from."""
    return tuple(_actions(spec))


def _actions(spec: Resolved) -> Iterator[Action]:
    results: list[Action] = []
    for action in _stages(spec):
        results.append(action)
        yield action
    yield _report(spec, results)


def _stages(spec: Resolved) -> Iterator[Action]:
    yield _export(spec)
    yield _reference(spec)
    yield _simplify(spec)
    for precision in _converted_precisions(spec):
        yield _convert(spec, precision)
    yield _validate(spec)
    for engine in spec["engines"]:
        yield _engine(spec, engine)
        yield _verify(spec, engine)
        yield _bench(spec, engine)


def _export(spec: Resolved) -> Action:
    model = spec["model"]
    return Action(
        target=f"export:{model}",
        stage="export",
        model=model,
        variant="",
        options=_export_options(spec),
        inputs={},
        outputs={
            "model": FileRef(f"{model}/export/model.onnx"),
            "model.data": FileRef(f"{model}/export/model.onnx.data", optional=True),
            "result": FileRef(f"{model}/export/export.json"),
        },
        sources=_network_sources(spec),
        weights=_weights_files(spec),
        code=_STAGE_CODE["export"],
        tools=("onnx", *_network_tools(spec), *_exporter_tools(spec)),
        environment=() if "onnx" in spec["source"] else ("torch",),
        timeout_s=_timeout(spec, "export"),
        doc=f"export {model} to ONNX",
    )


def _reference(spec: Resolved) -> Action:
    model = spec["model"]
    cases = shape_cases(spec["dims"])
    options = {**_network_options(spec), "cases": cases}
    options["data"] = {name: tensor["data"] for name, tensor in spec["inputs"].items()}
    return Action(
        target=f"reference:{model}",
        stage="reference",
        model=model,
        variant="",
        options=options,
        inputs={},
        outputs={
            **{f"case.{case}": FileRef(_case_path(model, case)) for case in cases},
            "result": FileRef(f"{model}/reference/reference.json"),
        },
        sources=(*_network_sources(spec), *_data_sources(spec)),
        weights=_weights_files(spec),
        code=_STAGE_CODE["reference"],
        tools=("numpy", *_network_tools(spec), *_oracle_tools(spec), *_small_float_tools(spec)),
        environment=("onnxruntime",) if "onnx" in spec["source"] else ("torch",),
        timeout_s=_timeout(spec, "reference"),
        doc=f"golden inputs and outputs of {model}",
    )


def _simplify(spec: Resolved) -> Action:
    model, tool = spec["model"], spec["simplify"]["tool"]
    return Action(
        target=f"simplify:{model}",
        stage="simplify",
        model=model,
        variant="",
        options={"simplify": spec["simplify"], "cases": _simplify_cases(spec), "inputs": _graph_inputs(spec)},
        inputs=_onnx_refs(f"{model}/export"),
        outputs={
            "model": FileRef(f"{model}/simplify/model.onnx"),
            "model.data": FileRef(f"{model}/simplify/model.onnx.data", optional=True),
            "result": FileRef(f"{model}/simplify/graph.json"),
        },
        after=(f"export:{model}",),
        code=_STAGE_CODE["simplify"],
        tools=("onnx", *_simplify_tools(spec)),
        environment=(tool, "onnxruntime") if tool != "none" else (),
        timeout_s=_timeout(spec, "simplify"),
        doc=f"simplify the graph of {model}",
    )


def _convert(spec: Resolved, precision: str) -> Action:
    model = spec["model"]
    folder = f"{model}/convert/{precision}"
    cases = shape_cases(spec["dims"], spec["verify"]["cases"])
    return Action(
        target=f"convert:{model}:{precision}",
        stage="convert",
        model=model,
        variant=precision,
        # the limits of the precision: an engine's own ones may be wider, and are for that engine
        options={"precision": precision, "tolerance": spec["verify"][precision], "cases": cases},
        inputs={
            **_onnx_refs(f"{model}/simplify"),
            **{f"case.{case}": FileRef(_case_path(model, case)) for case in cases},
        },
        outputs={
            "model": FileRef(f"{folder}/model.onnx"),
            "model.data": FileRef(f"{folder}/model.onnx.data", optional=True),
            "result": FileRef(f"{folder}/convert.json"),
        },
        after=(f"simplify:{model}", f"reference:{model}"),
        code=_STAGE_CODE["convert"],
        tools=("onnx", "onnxruntime", "numpy"),
        environment=("onnxruntime",),
        timeout_s=_timeout(spec, "convert"),
        doc=f"convert {model} to {precision} and check its numbers",
    )


def _validate(spec: Resolved) -> Action:
    model = spec["model"]
    cases = shape_cases(spec["dims"], spec["validate"]["cases"])
    tolerance = {field: spec["validate"][field] for field in ("rtol", "cosine", "atol", "top1")}
    return Action(
        target=f"validate:{model}",
        stage="validate",
        model=model,
        variant="",
        options={"tolerance": tolerance, "cases": cases},
        inputs={
            **{f"exported.{role}": ref for role, ref in _onnx_refs(f"{model}/export").items()},
            **{f"simplified.{role}": ref for role, ref in _onnx_refs(f"{model}/simplify").items()},
            **{f"case.{case}": FileRef(_case_path(model, case)) for case in cases},
        },
        outputs={"result": FileRef(f"{model}/validate/result.json")},
        after=(f"export:{model}", f"reference:{model}", f"simplify:{model}"),
        code=_STAGE_CODE["validate"],
        tools=("onnxruntime", "numpy", *_small_float_tools(spec)),
        environment=("onnxruntime",),
        timeout_s=_timeout(spec, "validate"),
        doc=f"check {model} in ONNX Runtime against PyTorch",
    )


def _engine(spec: Resolved, engine: Mapping[str, Any]) -> Action:
    model, name, precision = spec["model"], engine["name"], engine["precision"]
    converted = precision != _FULL_PRECISION
    source = f"{model}/convert/{precision}" if converted else f"{model}/simplify"
    return Action(
        target=f"engine:{model}:{name}",
        stage="engine",
        model=model,
        variant=name,
        options={"engine": _engine_fields(engine), **_profile_options(spec, engine)},
        inputs=_onnx_refs(source),
        outputs={
            "engine": FileRef(_engine_path(model, engine), optional=True),
            "engine.data": FileRef(f"{_engine_path(model, engine)}.data", optional=True),
            "result": FileRef(f"{model}/engine/{name}/engine.json"),
        },
        after=(f"convert:{model}:{precision}" if converted else f"simplify:{model}",),
        code=_backend_code("engine", engine),
        tools=(_BACKEND_TOOL[engine["backend"]], *(("onnx",) if engine["backend"] == "onnxruntime" else ())),
        devices=(*_devices(engine), *_cores(engine)),
        environment=_engine_environment(engine),
        required=engine["required"],
        timeout_s=_timeout(spec, "engine"),
        doc=f"build the engine {name} of {model}",
    )


def _verify(spec: Resolved, engine: Mapping[str, Any]) -> Action:
    model, name = spec["model"], engine["name"]
    cases = shape_cases(spec["dims"], spec["verify"]["cases"])
    tolerance = engine["tolerance"] or spec["verify"][engine["precision"]]
    return Action(
        target=f"verify:{model}:{name}",
        stage="verify",
        model=model,
        variant=name,
        options={"engine": _engine_fields(engine), "tolerance": tolerance, "cases": cases},
        inputs={**_engine_refs(model, engine), **{f"case.{case}": FileRef(_case_path(model, case)) for case in cases}},
        outputs={"result": FileRef(f"{model}/verify/{name}.json")},
        after=(f"engine:{model}:{name}", f"reference:{model}"),
        code=_backend_code("verify", engine),
        tools=("numpy", *_run_tools(spec, engine)),
        devices=_devices(engine),
        environment=_engine_environment(engine),
        timeout_s=_timeout(spec, "verify"),
        doc=f"check the engine {name} of {model} against the golden outputs",
    )


def _bench(spec: Resolved, engine: Mapping[str, Any]) -> Action:
    model, name = spec["model"], engine["name"]
    cases = shape_cases(spec["dims"], spec["bench"]["cases"])
    with_torch = bool(spec["bench"]["baselines"]) and "onnx" not in spec["source"]
    bench = {field: value for field, value in spec["bench"].items() if field not in ("cases", "baselines")}
    bench["baselines"] = spec["bench"]["baselines"] if with_torch else []
    options = {"engine": _engine_fields(engine), "bench": bench, "cases": cases}
    if with_torch:
        options["network"] = {**_network_options(spec), "outputs": {}}  # what it returns is not looked at
    return Action(
        target=f"bench:{model}:{name}",
        stage="bench",
        model=model,
        variant=name,
        options=options,
        inputs={**_engine_refs(model, engine), **{f"case.{case}": FileRef(_case_path(model, case)) for case in cases}},
        outputs={"result": FileRef(f"{model}/bench/{name}.json")},
        sources=_network_sources(spec) if with_torch else (),
        weights=_weights_files(spec) if with_torch else {},
        after=(f"engine:{model}:{name}", f"reference:{model}"),
        order=(f"verify:{model}:{name}",),  # the figures of a wrong engine are worth nothing
        code=_backend_code("bench", engine),
        # the calls that are timed are made in Python
        tools=("python", "numpy", *(_network_tools(spec) if with_torch else ()), *_run_tools(spec, engine)),
        devices=tuple(dict.fromkeys(("cpu", "cores", *_devices(engine)))),
        environment=(*_engine_environment(engine), *(("torch",) if with_torch else ()), "speed"),
        exclusive=True,
        timeout_s=_timeout(spec, "bench"),
        doc=f"benchmark the engine {name} of {model}",
    )


def _report(spec: Resolved, results: list[Action]) -> Action:
    model = spec["model"]
    return Action(
        target=f"report:{model}",
        stage="report",
        model=model,
        variant="",
        options={"manifest": {section: value for section, value in spec.items() if section != "timeout"}},
        inputs={action.target: action.outputs["result"] for action in results},
        outputs={
            "result": FileRef(f"{model}/report/report.json"),
            **({"markdown": FileRef(f"{model}/report/report.md")} if "markdown" in spec["report"]["formats"] else {}),
        },
        after=tuple(action.target for action in results),
        code=_STAGE_CODE["report"],
        timeout_s=_timeout(spec, "report"),
        doc=f"report on {model}",
    )


def _export_options(spec: Resolved) -> dict[str, Any]:
    if "onnx" not in spec["source"]:
        return {**_network_options(spec), "export": spec["export"]}
    return {  # the file is taken over, its seed, examples and exporter are nobody's
        "source": {"onnx": spec["source"]["onnx"]},
        "inputs": _graph_inputs(spec),
        "outputs": spec["outputs"],
        "export": {"external_data": spec["export"]["external_data"]},
    }


def _network_options(spec: Resolved) -> dict[str, Any]:
    """Return what it takes to make the network and call it: for PyTorch with the example as well."""
    if "onnx" in spec["source"]:
        return {"source": spec["source"], "inputs": _graph_inputs(spec)}
    inputs = {
        name: {"shape": tensor["shape"], "dtype": tensor["dtype"], "keyword": tensor["keyword"]}
        for name, tensor in spec["inputs"].items()
    }
    example = example_dims(spec["dims"])
    return {"source": spec["source"], "example": example, "inputs": inputs, "outputs": spec["outputs"]}


def _graph_inputs(spec: Resolved) -> dict[str, Any]:
    """Return the shapes and dtypes of the graph's inputs."""
    return {name: {"shape": tensor["shape"], "dtype": tensor["dtype"]} for name, tensor in spec["inputs"].items()}


def _profile_options(spec: Resolved, engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ranges of shapes that TensorRT builds for; ONNX Runtime takes what the graph takes."""
    if engine["backend"] == "onnxruntime":
        return {}
    spans = {name: {point: span[point] for point in _POINTS} for name, span in spec["dims"].items()}
    return {"dims": spans if engine["profiles"] is None else {}, "inputs": _graph_inputs(spec)}


def _simplify_cases(spec: Resolved) -> dict[str, Any]:
    """Return the smallest and the odd shape: validate runs both graphs in every case."""
    return shape_cases(spec["dims"], ("min", "odd")) if spec["simplify"]["tool"] != "none" else {}


def _network_sources(spec: Resolved) -> tuple[str, ...]:
    source = spec["source"]
    files = [source["python"].rpartition(":")[0]] if "python" in source else []
    files += [source["onnx"]] if "onnx" in source else []
    return tuple(files)


def _weights_files(spec: Resolved) -> dict[str, str | None]:
    weights = spec["source"].get("weights")
    return {weights["file"]: weights["sha256"]} if isinstance(weights, dict) else {}


def _data_sources(spec: Resolved) -> tuple[str, ...]:
    files = []
    for tensor in spec["inputs"].values():
        data = tensor["data"] or {}
        files += [data["npz"]] if "npz" in data else []
        files += [data["python"].rpartition(":")[0]] if "python" in data else []
    return tuple(dict.fromkeys(files))


def _network_tools(spec: Resolved) -> tuple[str, ...]:
    """Return what makes and runs the network; what the user's own files import is found in them."""
    if "onnx" in spec["source"]:
        return ()
    return ("python", "torch", "numpy", *(("torchvision",) if "torchvision" in spec["source"] else ()))


def _exporter_tools(spec: Resolved) -> tuple[str, ...]:
    dynamo = "onnx" not in spec["source"] and spec["export"]["exporter"] == "dynamo"
    return ("onnxscript", "onnx-ir", "sympy") if dynamo else ()  # sympy writes the names of computed sizes


def _simplify_tools(spec: Resolved) -> tuple[str, ...]:
    tool = spec["simplify"]["tool"]
    if tool == "none":
        return ()
    shapes = ("sympy",) if tool == "onnxslim" else ()
    return (tool, *shapes, "onnxruntime", "numpy", *_small_float_tools(spec))


def _oracle_tools(spec: Resolved) -> tuple[str, ...]:
    return ("onnx", "onnxruntime") if "onnx" in spec["source"] else ()


def _small_float_tools(spec: Resolved) -> tuple[str, ...]:
    """Return what rounds to the types of 8 and 4 bits, where an input or output has one."""
    dtypes = (tensor["dtype"] or "" for part in ("inputs", "outputs") for tensor in spec[part].values())
    return ("ml_dtypes",) if any(dtype.startswith(("float8", "float4")) for dtype in dtypes) else ()


def _run_tools(spec: Resolved, engine: Mapping[str, Any]) -> tuple[str, ...]:
    cuda = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas-cu12", "nvidia-cublas")
    more = cuda if engine.get("provider") == "cuda" else ()
    return (_BACKEND_TOOL[engine["backend"]], *more, *_small_float_tools(spec))


def _engine_environment(engine: Mapping[str, Any]) -> tuple[str, ...]:
    runtime = ("onnxruntime",) if engine["backend"] == "onnxruntime" else ()
    return (*runtime, *(("gpu",) if "gpu" in _devices(engine) else ()))


def _converted_precisions(spec: Resolved) -> tuple[str, ...]:
    asked = dict.fromkeys(engine["precision"] for engine in spec["engines"])
    return tuple(precision for precision in asked if precision != _FULL_PRECISION)


def _engine_fields(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's fields without those that only name it or judge the finished engine."""
    return {field: value for field, value in engine.items() if field not in ("name", "tolerance", "required")}


def _engine_path(model: str, engine: Mapping[str, Any]) -> str:
    suffix = "onnx" if engine["backend"] == "onnxruntime" else "engine"
    return f"{model}/engine/{engine['name']}/engine.{suffix}"


def _engine_refs(model: str, engine: Mapping[str, Any]) -> dict[str, FileRef]:
    path = _engine_path(model, engine)
    return {"engine": FileRef(path, optional=True), "engine.data": FileRef(f"{path}.data", optional=True)}


def _onnx_refs(folder: str) -> dict[str, FileRef]:
    return {"model": FileRef(f"{folder}/model.onnx"), "model.data": FileRef(f"{folder}/model.onnx.data", optional=True)}


def _case_path(model: str, case: str) -> str:
    return f"{model}/reference/{case}.npz"


def _backend_code(stage: str, engine: Mapping[str, Any]) -> tuple[str, ...]:
    return (*_STAGE_CODE[stage], f"buildsys.backends.{engine['backend']}")


def _devices(engine: Mapping[str, Any]) -> tuple[str, ...]:
    return ("gpu",) if engine["backend"] == "tensorrt_rtx" or engine.get("provider") == "cuda" else ("cpu",)


def _timeout(spec: Resolved, stage: str) -> float | None:
    limit: float | None = spec["timeout"].get(stage)
    return limit


def _cores(engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return whether an engine's settings say how many processors there are."""
    return ("cores",) if engine.get("intra_op_threads") == 0 else ()
