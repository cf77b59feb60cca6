"""Checks of engines, and of their benchmarks and toolchains."""

from __future__ import annotations

from typing import Any, get_args

from buildsys.manifest.checks.surgery import shapes_after_surgery
from buildsys.manifest.checks.view import REFUSED, ManifestView
from buildsys.manifest.problem import Problem, Problems, show_value, suggest
from buildsys.manifest.schema.base import QUANTIZED, Precision
from buildsys.manifest.value_tree import FieldPath, ValueNode
from buildsys.system.interpreters.toolchain import override_variable

_UNQUANTIZED = tuple(precision for precision in get_args(Precision) if precision not in QUANTIZED)
_DLA_ONLY = ("gpu_fallback", "dla_managed_sram", "dla_local_dram", "dla_global_dram")
_TENSORRT_ONLY = {  # field -> values with no effect
    "cuda_graph": (False, [False]),
    "transfers": ("none",),
    "in_flight": (1,),
    "wait": ("spin",),
}


def engine_problems(view: ManifestView) -> Problems:
    """Yield duplicate names, and contradictions between the fields of TensorRT engines."""
    names: list[Any] = []
    for path, engine in view.maps("engines", ...):
        name, backend = engine.get("name"), engine.get("backend")
        if isinstance(name, str) and name in names:
            text = f'two engines of this model are named "{name}"'
            yield view.problem((*path, "name"), text, "give one of them another name: …")
        names.append(name)
        if backend in ("tensorrt", "tensorrt_rtx"):
            yield from _io(view, path)
        if backend == "tensorrt":
            yield from _typing(view, path, engine)
            yield from _quantization(view, path, engine)
            yield from _dependent_fields(view, path, engine)


def int8_layers(engine: dict[str, Any]) -> list[int]:
    """Return the indexes of an engine's int8 layer precisions."""
    entries = engine.get("layer_precisions")
    given = enumerate(entries) if isinstance(entries, list) else ()
    return [i for i, entry in given if isinstance(entry, dict) and entry.get("precision") == "int8"]


def _typing(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    typing = engine.get("typing")
    if typing == "strong" and engine.get("layer_precisions"):
        text = "a strongly typed engine takes the type of each layer from the graph"
        hint = "remove it, or set typing: weak"
        yield view.problem((*path, "layer_precisions"), text, hint, of_key=True)
    if typing == "weak" and engine.get("weight_streaming") is True:
        text = "weight streaming needs a strongly typed engine"
        yield view.problem((*path, "weight_streaming"), text, "set typing: strong", of_key=True)
    if typing == "weak" and engine.get("precision") == "fp8":
        text = "a weakly typed engine cannot use fp8"
        yield view.problem((*path, "typing"), text, "set typing: strong, or remove it")


def _quantization(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    chosen, precision = engine.get("quantization"), engine.get("precision", "fp32")
    field = (*path, "quantization")
    int8 = int8_layers(engine)
    if chosen == "explicit" and precision in _UNQUANTIZED:
        text = f"an {precision} engine has no quantizers in its graph, only int8 and fp8 engines do"
        yield view.problem(field, text, "set precision: int8, or remove it")
    if chosen == "explicit" and engine.get("typing") != "strong":
        for number in int8:
            text = "the quantizers of the graph decide which layers are int8"
            hint = "remove it, and choose layers with quantize.exclude and quantize.operators"
            yield view.problem((*path, "layer_precisions", number, "precision"), text, hint)
    if chosen == "implicit" and engine.get("typing") == "strong":
        text = "a strongly typed engine takes types from the graph, so its builder cannot calibrate"
        yield view.problem(field, text, "set typing: weak, or quantization: explicit")
    elif chosen == "implicit" and (precision == "fp8" or (precision in _UNQUANTIZED and not int8)):
        other = "quantization: explicit" if precision == "fp8" else "precision: int8"
        text = f"builders calibrate int8 only, and the precision of this engine is {precision}"
        yield view.problem(field, text, f"set {other}, or remove it")


def _dependent_fields(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    for name in _DLA_ONLY:
        if engine.get(name) not in (None, False) and engine.get("dla_core") is None:
            hint = "set dla_core, or remove it"
            yield view.problem((*path, name), "has no effect without dla_core", hint, of_key=True)
    if engine.get("exclude_lean_runtime") is True and engine.get("version_compatible") is not True:
        text = "only a version-compatible engine contains a lean runtime"
        hint = "set version_compatible: true, or remove it"
        yield view.problem((*path, "exclude_lean_runtime"), text, hint, of_key=True)
    if engine.get("workspace") == 0:
        text = "an engine cannot be built without workspace memory"
        yield view.problem((*path, "workspace"), text, "set a size such as 4GiB, or remove it")


def _io(view: ManifestView, path: FieldPath) -> Problems:
    inputs, outputs = shapes_after_surgery(view), view.map("outputs")
    if inputs is None or not outputs:
        return  # names of undeclared outputs are known once the engine is built
    known = [*inputs, *outputs]
    for name in view.map(*path, "io"):
        if name not in known:
            hint = suggest(name, known, what="inputs and outputs")
            text = f'unknown input or output "{name}"'
            yield view.problem((*path, "io", name), text, hint, of_key=True)


def bench_problems(view: ManifestView) -> Problems:
    """Yield duplicate baselines and options unsupported by all engines.

    One engine that supports an option is enough. Options from shared files are not checked, as
    other models may have other engines.
    """
    baselines = view.list("bench", "baselines")
    yield from view.duplicates("bench", "baselines")
    engines = [engine for _, engine in view.maps("engines", ...)]
    if not engines or len(engines) < len(view.list("engines")):
        return  # an engine refused by the schema may support every option
    if any(engine.get("backend") in ("tensorrt", "tensorrt_rtx", REFUSED) for engine in engines):
        return
    on_gpu = [engine.get("provider") == "cuda" for engine in engines]
    names = [
        f"{engine.get('backend')} on a {'GPU' if gpu else 'CPU'}"
        for engine, gpu in zip(engines, on_gpu, strict=True)
    ]
    for field, without_effect in _TENSORRT_ONLY.items():
        value = view.get("bench", field)
        if value not in (None, REFUSED, *without_effect) and view.is_own("bench", field):
            text = f"not supported by {' and '.join(dict.fromkeys(names))}, only by TensorRT"
            hint = "remove it, or add a TensorRT engine"
            yield view.problem(("bench", field), text, hint, of_key=True)
    captured = "torch_cuda_graph"
    if captured in baselines and view.is_own("bench", "baselines") and not any(on_gpu):
        text = f"{captured} needs a GPU, and no engine of this model runs on one"
        yield view.problem(("bench", "baselines", baselines.index(captured)), text, "remove it")


def toolchain_problems(toolchains: ValueNode) -> Problems:
    """Yield colliding names and unusable interpreter paths."""
    taken: dict[str, str] = {}
    for name, toolchain in toolchains.items():
        variable = override_variable(name)
        if variable in taken:
            text = f"{name} and {taken[variable]} share the environment variable {variable}"
            yield Problem(toolchain.origin, text, "rename one of them", of_key=True)
        taken.setdefault(variable, name)
        python = toolchain.get("python")
        path = python.value if python is not None else None
        if python is not None and isinstance(path, str) and ("\0" in path or not path.strip()):
            yield Problem(python.origin, f"{show_value(path)} is not a path")


def unknown_toolchain(engine: ValueNode, toolchains: ValueNode | None) -> Problems:
    """Yield an engine's undeclared toolchain; ``toolchains`` is None if project.yaml is broken."""
    named = engine.get("toolchain")
    if named is None or toolchains is None or not isinstance(named.value, str):
        return
    known = [name for name, _ in toolchains.items()]
    if named.value not in known:
        close = suggest(named.value, known, what="toolchains")
        hint = close or "declare it in configs/project.yaml"
        yield Problem(named.origin, f"unknown toolchain {show_value(named.value)}", hint)
