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
        options={**_network_options(spec), "outputs": spec["outputs"], "export": spec["export"]},
        inputs={},
        outputs={
            "model": FileRef(f"{model}/export/model.onnx"),
            "model.data": FileRef(f"{model}/export/model.onnx.data", optional=True),
            "result": FileRef(f"{model}/export/export.json"),
        },
        sources=_network_sources(spec),
        code=_STAGE_CODE["export"],
        tools=("onnx", *_network_tools(spec), *(("onnxscript",) if spec["export"]["exporter"] == "dynamo" else ())),
        timeout_s=_timeout(spec, "export"),
        doc=f"export {model} to ONNX",
    )


def _reference(spec: Resolved) -> Action:
    model = spec["model"]
    cases = shape_cases(spec["dims"])
    options = {**_network_options(spec), "outputs": spec["outputs"], "cases": cases}
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
        code=_STAGE_CODE["reference"],
        tools=("ml_dtypes", *_network_tools(spec)),
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
        options={"simplify": spec["simplify"], "cases": shape_cases(spec["dims"]), **_tensors(spec)},
        inputs=_onnx_refs(f"{model}/export"),
        outputs={
            "model": FileRef(f"{model}/simplify/model.onnx"),
            "model.data": FileRef(f"{model}/simplify/model.onnx.data", optional=True),
            "result": FileRef(f"{model}/simplify/graph.json"),
        },
        after=(f"export:{model}",),
        code=_STAGE_CODE["simplify"],
        tools=("onnx", "onnxruntime", "numpy", *((tool,) if tool != "none" else ())),
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
        options={"tolerance": tolerance, "cases": cases, **_tensors(spec)},
        inputs={
            **{f"exported.{role}": ref for role, ref in _onnx_refs(f"{model}/export").items()},
            **{f"simplified.{role}": ref for role, ref in _onnx_refs(f"{model}/simplify").items()},
            **{f"case.{case}": FileRef(_case_path(model, case)) for case in cases},
        },
        outputs={"result": FileRef(f"{model}/validate/result.json")},
        after=(f"export:{model}", f"reference:{model}", f"simplify:{model}"),
        code=_STAGE_CODE["validate"],
        tools=("onnx", "onnxruntime", "numpy"),
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
        options={"engine": _engine_fields(engine), "dims": spec["dims"], **_tensors(spec)},
        inputs=_onnx_refs(source),
        outputs={
            "engine": FileRef(_engine_path(model, engine), optional=True),
            "engine.data": FileRef(f"{_engine_path(model, engine)}.data", optional=True),
            "result": FileRef(f"{model}/engine/{name}/engine.json"),
        },
        after=(f"convert:{model}:{precision}" if converted else f"simplify:{model}",),
        code=_backend_code("engine", engine),
        tools=("numpy", _BACKEND_TOOL[engine["backend"]]),
        devices=_devices(engine),
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
        options={"engine": _engine_fields(engine), "tolerance": tolerance, "cases": cases, **_tensors(spec)},
        inputs={**_engine_refs(model, engine), **{f"case.{case}": FileRef(_case_path(model, case)) for case in cases}},
        outputs={"result": FileRef(f"{model}/verify/{name}.json")},
        after=(f"engine:{model}:{name}", f"reference:{model}"),
        code=_backend_code("verify", engine),
        tools=("numpy", _BACKEND_TOOL[engine["backend"]]),
        devices=_devices(engine),
        timeout_s=_timeout(spec, "verify"),
        doc=f"check the engine {name} of {model} against the golden outputs",
    )


def _bench(spec: Resolved, engine: Mapping[str, Any]) -> Action:
    model, name = spec["model"], engine["name"]
    cases = shape_cases(spec["dims"], spec["bench"]["cases"])
    bench = {field: value for field, value in spec["bench"].items() if field != "cases"}
    options = {"engine": _engine_fields(engine), "bench": bench, "cases": cases, **_tensors(spec)}
    with_torch = bool(bench["baselines"]) and "onnx" not in spec["source"]
    if with_torch:
        options["network"] = {**_network_options(spec), "outputs": spec["outputs"]}
    return Action(
        target=f"bench:{model}:{name}",
        stage="bench",
        model=model,
        variant=name,
        options=options,
        inputs={**_engine_refs(model, engine), **{f"case.{case}": FileRef(_case_path(model, case)) for case in cases}},
        outputs={"result": FileRef(f"{model}/bench/{name}.json")},
        sources=_network_sources(spec) if with_torch else (),
        after=(f"engine:{model}:{name}", f"reference:{model}"),
        order=(f"verify:{model}:{name}",),  # the figures of a wrong engine are worth nothing
        code=_backend_code("bench", engine),
        tools=(*(_network_tools(spec) if with_torch else ("numpy",)), _BACKEND_TOOL[engine["backend"]]),
        devices=("cpu", "gpu"),
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


def _network_options(spec: Resolved) -> dict[str, Any]:
    """Return what it takes to make the PyTorch network and call it once."""
    return {"source": spec["source"], "example": example_dims(spec["dims"]), "inputs": _input_signature(spec)}


def _input_signature(spec: Resolved) -> dict[str, Any]:
    return {
        name: {"shape": tensor["shape"], "dtype": tensor["dtype"], "keyword": tensor["keyword"]}
        for name, tensor in spec["inputs"].items()
    }


def _tensors(spec: Resolved) -> dict[str, Any]:
    """Return the names, shapes and dtypes of the inputs and the declared outputs of the graph."""
    inputs = {name: {"shape": t["shape"], "dtype": t["dtype"]} for name, t in spec["inputs"].items()}
    return {"inputs": inputs, "outputs": list(spec["outputs"])}


def _network_sources(spec: Resolved) -> tuple[str, ...]:
    source = spec["source"]
    files = [source["python"].rpartition(":")[0]] if "python" in source else []
    files += [source["onnx"]] if "onnx" in source else []
    weights = source.get("weights")
    files += [weights["file"]] if isinstance(weights, dict) else []
    return tuple(files)


def _data_sources(spec: Resolved) -> tuple[str, ...]:
    files = []
    for tensor in spec["inputs"].values():
        data = tensor["data"] or {}
        files += [data["npz"]] if "npz" in data else []
        files += [data["python"].rpartition(":")[0]] if "python" in data else []
    return tuple(dict.fromkeys(files))


def _network_tools(spec: Resolved) -> tuple[str, ...]:
    if "onnx" in spec["source"]:
        return ("onnx", "onnxruntime")
    # a python: source may use torchvision as well, and a wrong "fresh" costs more than a rerun
    return ("torch", "torchvision", "numpy")


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
