"""Checks of engines: their fields, profiles, calibration, benchmarks and toolchains."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from buildsys.manifest.backend_choices import base_precision, is_auto
from buildsys.manifest.checks.surgery import shapes_after_surgery
from buildsys.manifest.checks.view import REFUSED, ManifestView
from buildsys.manifest.problem import Problems, show_value, suggest
from buildsys.manifest.schema.base import QUANTIZED
from buildsys.manifest.schema.stages import DEFAULT_PERCENTILE
from buildsys.manifest.value_ranges import data_problem
from buildsys.manifest.value_tree import FieldPath, ValueNode
from buildsys.system.backend_registry import (
    BrokenBackendError,
    describe_backend,
    find_package,
    import_backend,
)
from buildsys.system.interpreters.toolchain import override_variable

_TENSORRT_ALGORITHMS = ("entropy", "minmax")
_POINTS = ("min", "opt", "max")
_TENSORRT_ONLY = {  # field -> values with no effect
    "cuda_graph": (False, [False]),
    "transfers": ("none",),
    "in_flight": (1,),
    "wait": ("spin",),
}
Shape = list[Any]
Ranges = dict[str, list[int]]


def engine_problems(view: ManifestView) -> Problems:
    """Yield duplicate names, and contradictions between the fields of an engine."""
    names: list[Any] = []
    for path, engine in view.maps("engines", ...):
        name, backend = engine.get("name"), engine.get("backend")
        if isinstance(name, str) and name in names:
            text = f'two engines of this model are named "{name}"'
            yield view.problem((*path, "name"), text, "give one of them another name: …")
        names.append(name)
        if engine.get("precision") == "int4" and backend not in ("onnxruntime", None, REFUSED):
            hint = "use backend: onnxruntime, or another precision"
            text = "int4 engines are built with ONNX Runtime only"
            yield view.problem((*path, "precision"), text, hint)
        if isinstance(backend, str) and find_package(backend) is not None:
            yield from _own_problems(backend, view, path, engine)


def _own_problems(
    backend: str, view: ManifestView, path: FieldPath, engine: dict[str, Any]
) -> Problems:
    with suppress(BrokenBackendError):  # its engines are unavailable
        check = getattr(import_backend(backend, "options"), "problems", None)
        yield from check(view, path, engine) if check else ()


def auto_problems(view: ManifestView) -> Problems:
    """Yield precisions that no search can complete, and choices that it makes itself."""
    reported = set()
    for path, engine in view.maps("engines", ...):
        backend = engine.get("backend")
        known = isinstance(backend, str) and find_package(backend) is not None
        if not is_auto(engine) or not known:
            continue
        description = describe_backend(str(backend))
        choices = description.auto_precisions(engine)
        if not choices and not description.problem:
            text = f"{description.title} cannot keep single nodes in fp32"
            yield view.problem((*path, "precision"), text, "name a precision, such as fp16")
        elif (precision := base_precision(engine)) not in choices:
            text = f"{description.title} cannot keep single nodes of {precision} engines in fp32"
            hint = f"use auto-{' or auto-'.join(choices)}"
            yield view.problem((*path, "precision"), text, hint)
        elif engine.get("layer_precisions"):
            hint = f"remove it, or set precision: {precision}"
            text = "the search chooses the layers in fp32"
            yield view.problem((*path, "layer_precisions"), text, hint, of_key=True)
        elif engine.get("quantization") == "implicit":
            text = "a search cannot foresee the ranges of a builder's own calibration"
            yield view.problem((*path, "quantization"), text, "remove it, or set explicit")
        section, tool = "convert", "autocast"
        if precision_of(engine) in QUANTIZED:
            section, tool = "quantize", "modelopt"
        if view.get(section, "tool") == tool and section not in reported:
            reported.add(section)
            text = "ModelOpt chooses the nodes itself, so precision: auto has no effect"
            yield view.problem((section, "tool"), text, "use tool: builtin, or another precision")


def precision_of(engine: dict[str, Any]) -> str:
    """Return the precision of an unchecked engine, "" if unknown."""
    backend = engine.get("backend")
    if not isinstance(backend, str) or find_package(backend) is None:
        return ""
    return base_precision(engine)


def int8_layers(engine: dict[str, Any]) -> list[int]:
    """Return the indexes of an engine's int8 layer precisions."""
    entries = engine.get("layer_precisions")
    given = enumerate(entries) if isinstance(entries, list) else ()
    return [i for i, entry in given if isinstance(entry, dict) and entry.get("precision") == "int8"]


def program_problems(view: ManifestView) -> Problems:
    """Yield what contradicts engines built from the captured program of PyTorch."""
    engines = view.maps("engines", ...)
    backends = [str(engine.get("backend")) for _, engine in engines]
    known = [describe_backend(each) if find_package(each) else None for each in backends]
    for (path, _), backend in zip(engines, known, strict=True):
        if backend is None or not backend.takes_program:
            continue
        built = f"{backend.title} builds from the program of PyTorch"
        if "onnx" in view.map("source"):
            text, hint = f"{built}, and an ONNX source has none", "use another backend here"
            yield view.problem((*path, "backend"), text, hint)
        elif view.list("surgery"):
            text = f"{built}, which surgery on the ONNX graph does not change"
            hint = "change the network instead, or put this engine into a model without surgery"
            yield view.problem((*path, "backend"), text, hint)
    whole = len(engines) == len(view.list("engines"))
    if not (engines and whole and all(each and each.takes_program for each in known)):
        return
    for section in ("convert", "quantize"):
        for field, value in view.map(section).items():
            if view.is_own(section, field) and value not in (None, REFUSED):
                text = "changes the ONNX graph, and no engine of this model is built from it"
                yield view.problem((section, field), text, "remove it", of_key=True)


def quantization_problems(view: ManifestView) -> Problems:
    """Yield missing data and unsupported combinations of int8 and fp8 engines."""
    if view.get("convert", "tool") == "autocast" and view.get("convert", "exclude"):
        text = "ModelOpt AutoCast chooses the nodes itself"
        yield view.problem(("convert", "exclude"), text, "remove it, or use tool: builtin")
    if view.is_defined:  # it has its own quantizers
        return
    shapes = shapes_after_surgery(view)
    if shapes is not None and isinstance(view.get("calibration"), dict):
        yield from _calibration(view, shapes)
    reported: set[FieldPath] = set()
    for path, engine in view.maps("engines", ...):
        calibrated = engine.get("quantization") == "implicit" and int8_layers(engine)
        is_static = engine.get("quantization") != "dynamic"
        if (precision_of(engine) in QUANTIZED and is_static) or calibrated:
            for problem in _calibration_use(view, path, engine, shapes or {}):
                if problem.key not in reported:  # several engines may share one problem
                    reported.add(problem.key)
                    yield problem


def _calibration_use(
    view: ManifestView, path: FieldPath, engine: dict[str, Any], shapes: dict[str, list[Any]]
) -> Problems:
    precision, tool = precision_of(engine), view.get("quantize", "tool")
    algorithm = view.get("calibration", "algorithm") or _TENSORRT_ALGORITHMS[0]
    if view.get("calibration") is None:
        field, what = (
            ("precision", f"an {precision} engine")
            if precision in QUANTIZED
            else ("quantization", "an engine with implicit quantization")
        )
        text = f"{what} needs calibration data, but this model has no section calibration"
        entries = ", ".join(f"{name}: {_example_data(shape)}" for name, shape in shapes.items())
        yield view.problem((*path, field), text, f"add calibration: {{data: {{{entries}}}}}")
    if tool == "modelopt":
        for field, default in (("per_channel", True), ("outputs", False)):
            if view.get("quantize", field) not in (None, REFUSED, default):
                hint = "remove it, or use tool: builtin"
                text = "not supported by ModelOpt"
                yield view.problem(("quantize", field), text, hint, of_key=True)
        if algorithm == "percentile":
            hint = "use entropy or minmax, or another quantize.tool"
            text = "algorithm percentile is not supported by ModelOpt"
            yield view.problem(("calibration", "algorithm"), text, hint)
    chosen = engine.get("quantization", "auto")
    auto = is_auto(engine)  # its quantizers are in the graph
    implicit = chosen == "implicit" or (
        not auto and (chosen == "auto" and engine.get("typing") == "weak")
    )
    if implicit and algorithm not in (*_TENSORRT_ALGORITHMS, REFUSED):
        text = f"engine {engine.get('name')} calibrates with TensorRT: entropy or minmax only"
        hint = "use one of these, or quantization: explicit for the engine"
        yield view.problem(("calibration", "algorithm"), text, hint)


def _calibration(view: ManifestView, shapes: dict[str, list[Any]]) -> Problems:
    data = view.map("calibration", "data")
    for name, values in data.items():
        path = ("calibration", "data", name)
        if name not in shapes:
            hint = suggest(name, shapes, what="inputs")
            yield view.problem(path, f'unknown input "{name}"', hint, of_key=True)
        elif found := data_problem(view.get("inputs", name, "dtype") or "float32", values):
            field, text, hint = found
            yield view.problem((*path, *((field,) if field else ())), text, hint)
    for name, shape in shapes.items():
        unset = name not in data and view.get("inputs", name, "data") is None
        if unset and view.get("calibration", "data") is not REFUSED:
            hint = f"add data: {{{name}: {_example_data(shape)}}}"
            text = f'input "{name}" has no calibration data'
            yield view.problem(("calibration",), text, hint)
    algorithm = view.get("calibration", "algorithm") or _TENSORRT_ALGORITHMS[0]
    percentile = view.get("calibration", "percentile")
    if percentile not in (None, DEFAULT_PERCENTILE) and algorithm in _TENSORRT_ALGORITHMS:
        text, hint = f"ignored by algorithm {algorithm}", "remove it, or set algorithm: percentile"
        yield view.problem(("calibration", "percentile"), text, hint, of_key=True)
    size = view.get("calibration", "batch_size")
    for name, shape in shapes.items() if isinstance(size, int) else ():
        first = shape[0] if shape else None
        if not isinstance(first, str):
            state = f"has the fixed size {first}" if shape else "does not exist"
            text = f'the first dimension of input "{name}" {state}, so the batch size cannot be set'
            yield view.problem(("calibration", "batch_size"), text, "remove it", of_key=True)
        elif (span := view.dim_range(first)) and not span[0] <= size <= span[1]:
            text = f"{size} is outside the range of {first} ({span[0]} to {span[1]})"
            hint = f"choose a size in this range, or widen dims.{first}"
            yield view.problem(("calibration", "batch_size"), text, hint)


def _example_data(shape: list[Any]) -> str:
    image = len(shape) == 4 and shape[1] in (1, 3)
    return "{images: data/calibration}" if image else "{npz: data/calibration.npz}"


def profile_problems(view: ManifestView) -> Problems:
    """Yield the problems of the explicit profiles of all engines."""
    if (inputs := shapes_after_surgery(view)) is not None:
        for path, profile in view.maps("engines", ..., "profiles", ...):
            yield from _profile(view, path, profile, inputs)


def _profile(
    view: ManifestView, path: FieldPath, profile: dict[str, Any], inputs: dict[str, Shape]
) -> Problems:
    sizes: dict[tuple[str, str], tuple[str, int]] = {}  # dimension, point -> first place and size
    for name, entry in profile.items():
        if name not in inputs:
            hint = suggest(name, inputs, what="inputs")
            yield view.problem((*path, name), f'unknown input "{name}"', hint, of_key=True)
        elif isinstance(entry, dict) and "values" in entry:
            yield from _value_range(view, (*path, name, "values"), entry["values"], inputs[name])
        else:
            ranges = _ranges_of(entry)
            problems = list(_shape_range(view, (*path, name), ranges, inputs[name]))
            yield from problems
            named = enumerate(inputs[name]) if not problems else ()
            for axis, dim in ((axis, dim) for axis, dim in named if isinstance(dim, str)):
                for point, given in ranges.items():
                    here = f"axis {axis} of {name}", given[axis]
                    place, size = sizes.setdefault((dim, point), here)
                    if size != given[axis]:
                        text = f"axis {axis} ({dim}) is {given[axis]}, but {place} (also {dim}) is"
                        hint = "give both the same size, or two names in dims"
                        yield view.problem((*path, name, point), f"{text} {size}", hint)
    for name, shape in inputs.items():
        if name not in profile and any(isinstance(size, str) for size in shape):
            text = f'the profile has no range for the dynamic input "{name}"'
            yield view.problem(path, text, f"add {name}: {{min: […], opt: […], max: […]}}")


def _value_range(view: ManifestView, path: FieldPath, entry: Any, shape: Shape) -> Problems:
    if any(isinstance(size, str) for size in shape) or len(shape) > 1:
        text = "a range of values needs an input of fixed shape with at most one dimension"
        yield view.problem(path, text, "give min, opt and max of its shape instead", of_key=True)
        return
    ranges, count = _ranges_of(entry), shape[0] if shape else 1
    for point, values in ranges.items():
        if len(values) != count:
            text = f"expected {count} values, one per element of the input, found {len(values)}"
            yield view.problem((*path, point), text)
            return
    if len(ranges) == len(_POINTS):
        for index, (low, best, high) in enumerate(zip(*ranges.values(), strict=True)):
            if not low <= best <= high:
                text = f"min {low}, opt {best}, max {high} of value {index} are not ascending"
                yield view.problem(path, text, "reorder them")


def _ranges_of(entry: Any) -> Ranges:
    """Return the valid lists of integers among min, opt and max."""
    given = {point: entry.get(point) for point in _POINTS} if isinstance(entry, dict) else {}
    return {
        point: sizes
        for point, sizes in given.items()
        if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
    }


def _shape_range(view: ManifestView, path: FieldPath, ranges: Ranges, shape: Shape) -> Problems:
    for point, sizes in ranges.items():
        if len(sizes) != len(shape):
            text = (
                f"expected {len(shape)} sizes, one per dimension of the input, found {len(sizes)}"
            )
            hint = f"its shape is [{', '.join(map(str, shape))}]"
            yield view.problem((*path, point), text, hint)
            return
    if len(ranges) < len(_POINTS):
        return
    for axis, size in enumerate(shape):
        low, best, high = (ranges[point][axis] for point in _POINTS)
        if not low <= best <= high:
            text = f"min {low}, opt {best}, max {high} of axis {axis} are not ascending"
            yield view.problem(path, text, "reorder them")
        elif isinstance(size, int) and not low == high == size:
            text = f"axis {axis} is {low} to {high}, but the input has the fixed size {size} there"
            yield view.problem(path, text, f"use {size} for min, opt and max")
        elif isinstance(size, str) and (span := view.dim_range(size)):
            least, most, step = span
            for point in _POINTS:
                chosen = ranges[point][axis]
                text = f"axis {axis} ({size}) is {chosen}, "
                if not least <= chosen <= most:
                    text += f"outside the range {least} to {most} of dims.{size}"
                    hint = "widen dims or narrow the profile: outputs are verified within dims only"
                    yield view.problem((*path, point), text, hint)
                elif rest := chosen % step:
                    text += f"but dims.{size}.multiple_of is {step}"
                    hint = f"nearest: {chosen - rest} or {chosen - rest + step}"
                    yield view.problem((*path, point), text, hint)


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
    backends = [str(engine.get("backend")) for engine in engines]
    if any(find_package(each) is None or describe_backend(each).has_gpu_clock for each in backends):
        return
    on_gpu = [
        describe_backend(name).runs_on_gpu(engine)
        for name, engine in zip(backends, engines, strict=True)
    ]
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
            yield toolchain.error(text, "rename one of them", of_key=True)
        taken.setdefault(variable, name)
        python = toolchain.get("python")
        path = python.value if python else ""
        if python and isinstance(path, str) and ("\0" in path or not path.strip()):
            text = f"{show_value(path)} is not a path"
            yield python.error(text, "write the path of a Python interpreter")


def unknown_toolchain(engine: ValueNode, toolchains: ValueNode | None) -> Problems:
    """Yield an engine's undeclared toolchain; ``toolchains`` is None if project.yaml is broken."""
    name = engine.get("toolchain")
    if name is None or toolchains is None or not isinstance(name.value, str):
        return
    names = [declared for declared, _ in toolchains.items()]
    if name.value not in names:
        hint = suggest(name.value, names, what="toolchains")
        hint = hint or "declare it in configs/project.yaml"
        yield name.error(f"unknown toolchain {show_value(name.value)}", hint)
