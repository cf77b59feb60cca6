"""What of a manifest each stage uses: options, files, libraries, devices.

An action's options are exactly the manifest fields that its stage uses: what is not passed here can
neither reach the stage nor make its target stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.manifest.shape_cases import example_dims
from buildsys.plan import calibration, custom_operators
from buildsys.plan.artifacts import Resolved
from buildsys.plan.surgery_points import (
    AFTER_EXPORT,
    AFTER_SIMPLIFY,
    EXPORTED,
    WHENS,
    all_values,
    cases_at,
    changes_golden,
    dims_at,
    golden_cases_at,
    inputs_at,
    origin_of,
    point_before,
    steps_of,
)
from buildsys.plan.tensorrt_typing import is_explicit, is_weak

STAGE_CODE = {stage: (f"buildsys.stages.{stage}.stage",) for stage in (
    "operators", "export", "reference", "surgery", "simplify", "calibrate", "convert", "validate", "engine", "verify",
    "bench", "report",
)}  # fmt: skip
GRAPH_STAGES = ("export", "surgery", "simplify", "convert")
BACKEND_TOOLS = {
    "onnxruntime": "onnxruntime",
    "tensorrt": "tensorrt",
    "tensorrt_rtx": "tensorrt_rtx",
}
FULL_PRECISION = "fp32"
TAUGHT = ("symbolics", "translations")  # sections that teach an exporter operators
_NOT_SHOWN = ("timeout", "toolchains")
_POINTS = ("min", "opt", "max")
_RARE = (*TAUGHT, "ops", "surgery", "calibration")  # sections that few models have


def export_options(spec: Resolved) -> dict[str, Any]:
    """Return what the export uses of a manifest."""
    if "onnx" not in spec["source"]:
        taught = {section: spec[section] for section in TAUGHT if spec[section]}
        return {**network_options(spec), "export": spec["export"], **taught}
    return {  # the file is taken over, its seed, examples and exporter are nobody's
        "source": {"onnx": spec["source"]["onnx"]},
        "inputs": graph_inputs(spec),
        "outputs": spec["outputs"],
        "export": {"external_data": spec["export"]["external_data"]},
    }


def network_options(spec: Resolved) -> dict[str, Any]:
    """Return what it takes to make the network and call it: for PyTorch with the example as well."""
    if "onnx" in spec["source"]:
        return {"source": spec["source"], "inputs": graph_inputs(spec)}
    inputs = {
        name: {"shape": tensor["shape"], "dtype": tensor["dtype"], "keyword": tensor["keyword"]}
        for name, tensor in spec["inputs"].items()
    }
    example = example_dims(dims_at(spec, EXPORTED))
    return {
        "source": spec["source"],
        "example": example,
        "inputs": inputs,
        "outputs": spec["outputs"],
    }


def graph_inputs(spec: Resolved, point: str = EXPORTED) -> dict[str, Any]:
    """Return the shapes and dtypes of the graph's inputs at a point in the chain."""
    return dict(inputs_at(spec, point))


def profile_options(spec: Resolved, engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ranges of shapes that TensorRT builds for; ONNX Runtime takes what the graph takes."""
    if engine["backend"] == "onnxruntime":
        return {}
    spans = {
        name: {point: span[point] for point in _POINTS}
        for name, span in dims_at(spec, AFTER_SIMPLIFY).items()
    }
    return {
        "dims": spans if engine["profiles"] is None else {},
        "inputs": graph_inputs(spec, AFTER_SIMPLIFY),
    }


def simplify_cases(spec: Resolved) -> dict[str, Any]:
    """Return the smallest and the odd shape: validate runs both graphs in every case."""
    return (
        cases_at(spec, AFTER_EXPORT, ("min", "odd")) if spec["simplify"]["tool"] != "none" else {}
    )


def surgery_options(spec: Resolved, when: str) -> dict[str, Any]:
    """Return the steps of one graph, and what each of its shape cases comes from."""
    steps, before = steps_of(spec, when), point_before(when)
    options: dict[str, Any] = {
        "steps": [
            {field: value for field, value in step.items() if field != "when"} for step in steps
        ],
        "inputs": graph_inputs(spec, before),
        "cases": {
            case: {"dims": all_values(spec)[case], "golden": origin_of(spec, case, before)}
            for case in golden_cases_at(spec, when)
        },
    }
    if changes_golden(steps):
        options["tolerance"] = {
            field: spec["validate"][field] for field in ("rtol", "cosine", "atol", "top1")
        }
    if any(step.get("inputs") for step in steps):
        options["seed"] = spec["source"]["seed"]
    return options


def surgery_sources(spec: Resolved, when: str) -> tuple[str, ...]:
    """Return the user's files that the steps of one graph call or compare with."""
    files = []
    for step in steps_of(spec, when):
        reference, replacement = step.get("reference") or {}, step.get("replace") or {}
        callables = [step.get("function"), replacement.get("function"), reference.get("python")]
        files += [name.rpartition(":")[0] for name in callables if name]
        files += calibration.values_sources((reference, *_new_data(step)))
    return tuple(dict.fromkeys(files))


def _new_data(step: Mapping[str, Any]) -> list[Mapping[str, Any] | None]:
    """Return where the values of the inputs come from that a step declares."""
    return [tensor["data"] for tensor in (step.get("inputs") or {}).values()]


def surgery_tools(spec: Resolved, when: str) -> tuple[str, ...]:
    """Return what changes the graph and compares."""
    hooks = ("python",) if surgery_sources(spec, when) else ()
    other = (
        ("onnx-graphsurgeon",)
        if any(s.get("graph") == "graphsurgeon" for s in steps_of(spec, when))
        else ()
    )
    data = [entry for step in steps_of(spec, when) for entry in _new_data(step)]
    images = tuple(tool for tool in calibration.values_tools(data) if tool == "pillow")
    return (*hooks, "onnx", "onnxruntime", "numpy", *other, *images, *small_float_tools(spec))


def reported(spec: Resolved) -> dict[str, Any]:
    """Return the manifest as the report shows it: time-outs decide nothing that it holds.

    A section that few models have is left out where it is empty: it has nothing to say there.
    """
    idle = {*_NOT_SHOWN} | ({"quantize"} if not calibration.quantized_engines(spec) else set())
    idle |= {"convert"} if spec["convert"] == {"tool": "builtin"} else set()
    shown = {
        name: value
        for name, value in spec.items()
        if name not in idle and (value or name not in _RARE)
    }
    toolchains = {name: {"env": found["env"]} for name, found in spec.get("toolchains", {}).items()}
    return {**shown, **({"toolchains": toolchains} if toolchains else {})}  # without where they lie


def network_sources(spec: Resolved) -> tuple[str, ...]:
    """Return the user's files that make the network."""
    source = spec["source"]
    files = [source["python"].rpartition(":")[0]] if "python" in source else []
    files += [source["onnx"]] if "onnx" in source else []
    return tuple(files)


def taught_sources(spec: Resolved) -> tuple[str, ...]:
    """Return the user's files that teach the exporter operators."""
    entries = [entry for section in TAUGHT for entry in spec[section]]
    files = [entry.get("module") or entry["function"].rpartition(":")[0] for entry in entries]
    return tuple(dict.fromkeys(files)) if "onnx" not in spec["source"] else ()


def weights_files(spec: Resolved) -> dict[str, str | None]:
    """Return state dicts and the digests that they must have."""
    weights = spec["source"].get("weights")
    return {weights["file"]: weights["sha256"]} if isinstance(weights, dict) else {}


def data_sources(spec: Resolved) -> tuple[str, ...]:
    """Return the user's files that golden inputs come from."""
    return calibration.values_sources(tensor["data"] for tensor in spec["inputs"].values())


def network_tools(spec: Resolved) -> tuple[str, ...]:
    """Return what makes and runs the network; what the user's own files import is found in them."""
    if "onnx" in spec["source"]:
        return ()
    return (
        "python",
        "torch",
        "numpy",
        *(("torchvision",) if "torchvision" in spec["source"] else ()),
    )


def exporter_tools(spec: Resolved) -> tuple[str, ...]:
    """Return what the exporter needs beside torch."""
    dynamo = "onnx" not in spec["source"] and spec["export"]["exporter"] == "dynamo"
    return (
        ("onnxscript", "onnx-ir", "sympy") if dynamo else ()
    )  # sympy writes the names of computed sizes


def simplify_tools(spec: Resolved) -> tuple[str, ...]:
    """Return what simplifies and compares."""
    tool = spec["simplify"]["tool"]
    if tool == "none":
        return ()
    shapes = ("sympy",) if tool == "onnxslim" else ()
    return (tool, *shapes, "onnxruntime", "numpy", *small_float_tools(spec))


def oracle_tools(spec: Resolved) -> tuple[str, ...]:
    """Return what computes the reference of a ready ONNX file."""
    return ("onnx", "onnxruntime") if "onnx" in spec["source"] else ()


def engine_tools(engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what builds an engine, and onnx, which reads the figures of one of ONNX Runtime."""
    hook = ("python",) if network_hooks(engine) else ()
    return (
        BACKEND_TOOLS[engine["backend"]],
        *(("onnx",) if engine["backend"] == "onnxruntime" else ()),
        *hook,
    )


def oracle_operators(spec: Resolved) -> custom_operators.Taken:
    """Return what implements the operators of a ready ONNX file, whose outputs ONNX Runtime computes."""
    if "onnx" not in spec["source"] or not spec["ops"]:
        return custom_operators.NOTHING
    taken = custom_operators.taken(spec, custom_operators.MAIN)
    if not custom_operators.graph_functions(spec):
        return taken
    inputs = {"graph_functions": custom_operators.functions_ref(spec), **taken.inputs}
    return custom_operators.Taken(
        taken.options, inputs, after=(custom_operators.operators_target(spec),)
    )


def small_float_tools(spec: Resolved) -> tuple[str, ...]:
    """Return what rounds to the types of 8 and 4 bits, where an input or output has one."""
    declared = [*spec["inputs"].values(), *spec["outputs"].values()]
    declared += [tensor for when in WHENS for tensor in inputs_at(spec, when).values()]
    small = any((tensor["dtype"] or "").startswith(("float8", "float4")) for tensor in declared)
    return ("ml_dtypes",) if small else ()


def run_tools(spec: Resolved, engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what runs an engine."""
    cuda = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas-cu12", "nvidia-cublas")
    more = cuda if engine.get("provider") == "cuda" else ()
    return (BACKEND_TOOLS[engine["backend"]], *more, *small_float_tools(spec))


def engine_environment(engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the families of environment variables that an engine depends on."""
    runtime = ("onnxruntime",) if engine["backend"] == "onnxruntime" else ()
    return (*runtime, *(("gpu",) if "gpu" in devices(engine) else ()))


def converted_precisions(spec: Resolved) -> tuple[str, ...]:
    """Return the precisions that graphs are converted to."""
    return tuple(
        dict.fromkeys(engine["precision"] for engine in spec["engines"] if is_converted(engine))
    )


def is_converted(engine: Mapping[str, Any]) -> bool:
    """Tell whether an engine is built from a graph in the types of its precision."""
    return engine["precision"] != FULL_PRECISION and (is_explicit(engine) or not is_weak(engine))


def network_hooks(engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the user's file whose function changes the network before it is built."""
    hook = engine.get("network")
    return (hook.rpartition(":")[0],) if hook else ()


def engine_fields(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's fields without those that only name it or judge the finished engine."""
    unused = ("name", "tolerance", "required", *(() if engine["toolchain"] else ("toolchain",)))
    return {field: value for field, value in engine.items() if field not in unused}


def toolchain_tools(engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a toolchain has beside the library of its engines."""
    return ("python", "numpy") if engine["toolchain"] else ()


def backend_code(stage: str, engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules of a stage that works through a backend."""
    return (*STAGE_CODE[stage], f"buildsys.backends.{engine['backend']}.backend")


def devices(engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the devices that an engine depends on."""
    return (
        ("cpu",) if engine["backend"] == "onnxruntime" and engine["provider"] == "cpu" else ("gpu",)
    )


def is_on_gpu(engine: Mapping[str, Any]) -> bool:
    """Tell whether an engine runs on a GPU."""
    return "gpu" in devices(engine)


def timeout(spec: Resolved, stage: str) -> float | None:
    """Return the limit of a stage in seconds."""
    limit: float | None = spec["timeout"].get(stage)
    return limit


def cores(engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return whether an engine's settings say how many processors there are."""
    return ("cores",) if engine.get("intra_op_threads") == 0 else ()
