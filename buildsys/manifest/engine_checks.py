"""Checks of engines: their fields, precisions, sources, toolchains and profiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from buildsys.manifest.backend_choices import base_precision, is_auto
from buildsys.manifest.problem import Problems, show_value, suggest
from buildsys.manifest.schema.base import QUANTIZED
from buildsys.manifest.value_tree import FieldPath, ValueNode
from buildsys.manifest.view import REFUSED, ManifestView, shapes_after_surgery
from buildsys.stages.table import GRAPH_SECTIONS
from buildsys.system.backend_registry import (
    BackendDescription,
    BrokenBackendError,
    describe_backend,
    find_package,
    import_backend,
)

_POINTS = ("min", "opt", "max")
Shape = list[Any]
Ranges = dict[str, list[int]]


class UsableEngine(NamedTuple):
    """An engine of a backend that exists."""

    path: FieldPath
    fields: dict[str, Any]
    backend: BackendDescription


def usable_engines(view: ManifestView) -> Iterator[UsableEngine]:
    """Yield the engines of backends that exist."""
    for path, fields in view.maps("engines", ...):
        if backend := _backend_of(fields):
            yield UsableEngine(path, fields, backend)


def _backend_of(fields: dict[str, Any]) -> BackendDescription | None:
    name = fields.get("backend")
    is_backend = isinstance(name, str) and find_package(name) is not None
    return describe_backend(str(name)) if is_backend else None


def precision_of(fields: dict[str, Any]) -> str:
    """Return the precision of an unchecked engine, "" if unknown."""
    return base_precision(fields) if _backend_of(fields) else ""


def int8_layers(fields: dict[str, Any]) -> list[int]:
    """Return the indexes of an engine's int8 layer precisions."""
    layers = fields.get("layer_precisions")
    return [
        index
        for index, layer in enumerate(layers if isinstance(layers, list) else ())
        if isinstance(layer, dict) and layer.get("precision") == "int8"
    ]


def engine_problems(view: ManifestView) -> Problems:
    """Yield duplicate names, and contradictions between the fields of an engine."""
    names: list[Any] = []
    for path, fields in view.maps("engines", ...):
        name, backend = fields.get("name"), fields.get("backend")
        if isinstance(name, str) and name in names:
            text = f'two engines of this model are named "{name}"'
            yield view.problem((*path, "name"), text, "give one of them another name: …")
        names.append(name)
        if fields.get("precision") == "int4" and backend not in ("onnxruntime", None, REFUSED):
            hint = "use backend: onnxruntime, or another precision"
            text = "int4 engines are built with ONNX Runtime only"
            yield view.problem((*path, "precision"), text, hint)
    for engine in usable_engines(view):
        with suppress(BrokenBackendError):  # its engines are unavailable
            options = import_backend(engine.fields["backend"], "options")
            if check := getattr(options, "problems", None):
                yield from check(view, engine.path, engine.fields)
        if is_auto(engine.fields):
            yield from _auto_problems(view, engine)
        if engine.backend.takes_program:
            yield from _program_problems(view, engine)
        if view.is_defined:
            yield from _definition_problems(view, engine)
    if view.is_defined:
        yield from _sections_of_definition(view)


def _auto_problems(view: ManifestView, engine: UsableEngine) -> Problems:
    """Yield precisions that no search can complete, and choices that it makes itself."""
    path, fields, backend = engine
    choices, precision = backend.auto_precisions(fields), base_precision(fields)
    section, tool = ("quantize", "modelopt") if precision in QUANTIZED else ("convert", "autocast")
    if precision not in choices and not backend.problem:
        text = f"{backend.title} cannot keep single nodes of {precision} engines in fp32"
        hint = f"use auto-{' or auto-'.join(choices)}" if choices else ""
        yield view.problem((*path, "precision"), text, hint or "name a precision, such as fp16")
    elif fields.get("layer_precisions"):
        hint = f"remove it, or set precision: {precision}"
        text = "the search chooses the layers in fp32"
        yield view.problem((*path, "layer_precisions"), text, hint, of_key=True)
    elif fields.get("quantization") == "implicit":
        text = "a search cannot foresee the ranges of a builder's own calibration"
        yield view.problem((*path, "quantization"), text, "remove it, or set explicit")
    if view.get(section, "tool") == tool:
        text = "ModelOpt chooses the nodes itself, so precision: auto has no effect"
        yield view.problem((section, "tool"), text, "use tool: builtin, or another precision")


def _program_problems(view: ManifestView, engine: UsableEngine) -> Problems:
    """Yield what contradicts an engine built from the captured program of PyTorch."""
    built = f"{engine.backend.title} builds from the program of PyTorch"
    if "onnx" in view.map("source"):
        text, hint = f"{built}, and an ONNX source has none", "use another backend here"
        yield view.problem((*engine.path, "backend"), text, hint)
    elif view.list("surgery"):
        text = f"{built}, which surgery on the ONNX graph does not change"
        hint = "change the network instead, or put this engine into a model without surgery"
        yield view.problem((*engine.path, "backend"), text, hint)


def _sections_of_definition(view: ManifestView) -> Problems:
    """Yield what a network defined by hand, ``source: {tensorrt: …}``, does not have."""
    for section in GRAPH_SECTIONS:
        if view.get(section) not in (None, REFUSED, {}, []) and view.is_own(section):
            text = "changes or makes an ONNX graph, and source.tensorrt makes a network"
            yield view.problem((section,), text, "remove it", of_key=True)
    file = view.get("source", "weights", "file")
    if isinstance(file, str) and not file.endswith(".npz"):
        text = f"the weights of a network defined by hand are an .npz file, not {file}"
        yield view.problem(("source", "weights", "file"), text, "save them with numpy.savez")


def _definition_problems(view: ManifestView, engine: UsableEngine) -> Problems:
    """Yield what contradicts an engine of a network defined by hand."""
    path, fields, backend = engine
    if not backend.takes_definition:
        if not backend.problem:
            # an engine preset is named in this manifest, but has its backend elsewhere
            field = "backend" if view.is_own(*path, "backend") else "name"
            text = f"{backend.title} cannot build a network defined with TensorRT's API"
            hint = "use backend: tensorrt, or make the reference the source of another model"
            yield view.problem((*path, field), text, hint)
    elif is_auto(fields) or fields.get("quantization") == "implicit":
        field = "precision" if is_auto(fields) else "quantization"
        text = f"{show_value(fields[field])} needs an ONNX graph, and there is none"
        hint = "name a precision such as fp16, or add quantizers in the function of source.tensorrt"
        yield view.problem((*path, field), text, hint)


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
            continue
        shape, place = inputs[name], (*path, name)
        if isinstance(entry, dict) and "values" in entry:
            if any(isinstance(size, str) for size in shape) or len(shape) > 1:
                text = "a range of values needs an input of fixed shape with at most one dimension"
                hint = "give min, opt and max of its shape instead"
                yield view.problem((*place, "values"), text, hint, of_key=True)
                continue
            place, entry = (*place, "values"), entry["values"]
            shape = [None] * (shape[0] if shape else 1)  # any values
        ranges = _ranges_of(entry)
        problems = list(_range_problems(view, place, ranges, shape))
        yield from problems
        for axis, dim in enumerate([] if problems else shape):
            for point, values in ranges.items() if isinstance(dim, str) else ():
                first, size = sizes.setdefault(
                    (dim, point), (f"axis {axis} of {name}", values[axis])
                )
                if size != values[axis]:
                    text = (
                        f"axis {axis} ({dim}) is {values[axis]}, but {first} (also {dim}) is {size}"
                    )
                    hint = "give both the same size, or two names in dims"
                    yield view.problem((*place, point), text, hint)
    for name, shape in inputs.items():
        if name not in profile and any(isinstance(size, str) for size in shape):
            text = f'the profile has no range for the dynamic input "{name}"'
            yield view.problem(path, text, f"add {name}: {{min: […], opt: […], max: […]}}")


def _ranges_of(entry: Any) -> Ranges:
    """Select the valid lists of integers among min, opt and max."""
    points = {point: entry.get(point) for point in _POINTS} if isinstance(entry, dict) else {}
    return {
        point: sizes
        for point, sizes in points.items()
        if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
    }


def _range_problems(view: ManifestView, path: FieldPath, ranges: Ranges, shape: Shape) -> Problems:
    for point, sizes in ranges.items():
        if len(sizes) != len(shape):
            text = f"expected {len(shape)} numbers, found {len(sizes)}"
            yield view.problem((*path, point), text, "one per dimension, or per element of values")
            return
    if len(ranges) < len(_POINTS):
        return
    for axis, size in enumerate(shape):
        low, best, high = chosen = [ranges[point][axis] for point in _POINTS]
        if not low <= best <= high:
            text = f"min {low}, opt {best}, max {high} of axis {axis} are not ascending"
            yield view.problem(path, text, "reorder them")
        elif isinstance(size, int) and not low == high == size:
            text = f"axis {axis} is {low} to {high}, but the input has the fixed size {size} there"
            yield view.problem(path, text, f"use {size} for min, opt and max")
        elif isinstance(size, str) and (span := view.dim_range(size)):
            least, most, step = span
            for point, value in zip(_POINTS, chosen, strict=True):
                if not least <= value <= most or value % step:
                    multiple = f" in steps of {step}" if step != 1 else ""
                    text = f"axis {axis} ({size}) is {value}, outside the range {least} to {most}"
                    hint = "widen dims or narrow the profile: outputs are verified within dims only"
                    yield view.problem((*path, point), f"{text} of dims.{size}{multiple}", hint)
