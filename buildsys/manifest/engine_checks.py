"""Checks of engines: their fields, precisions, sources, toolchains and profiles."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from buildsys.manifest.backend_choices import QUANTIZED, base_precision, is_auto
from buildsys.manifest.problem import Problems, show_value, suggest
from buildsys.manifest.value_tree import FieldPath, ValueNode
from buildsys.manifest.view import ManifestView, RefusedError, shapes_after_surgery
from buildsys.stages.table import GRAPH_SECTIONS
from buildsys.system.backend_registry import BrokenBackendError, describe_backend, import_backend

_POINTS = ("min", "opt", "max")
Fields = dict[str, Any]
Shape = list[Any]


def int8_layers(fields: Fields) -> list[int]:
    """Return the indexes of an engine's int8 layer precisions."""
    layers = fields.get("layer_precisions") or ()
    return [index for index, layer in enumerate(layers) if layer["precision"] == "int8"]


def engine_problems(view: ManifestView) -> Problems:
    """Yield duplicate names, and contradictions between the fields of an engine."""
    names: set[str] = set()
    for path, fields in view.maps("engines", ...):
        if fields["name"] in names:
            text = f'two engines of this model are named "{fields["name"]}"'
            yield view.problem((*path, "name"), text, "give one of them another name: …")
        names.add(fields["name"])
        if fields.get("precision") == "int4" and fields["backend"] != "onnxruntime":
            hint = "use backend: onnxruntime, or another precision"
            text = "int4 engines are built with ONNX Runtime only"
            yield view.problem((*path, "precision"), text, hint)
        with suppress(RefusedError, BrokenBackendError):  # a broken backend's are unavailable
            options = import_backend(fields["backend"], "options")
            if check := getattr(options, "problems", None):
                yield from check(view, path, fields)
        for check in (_auto_problems, _program_problems, _definition_problems):
            with suppress(RefusedError):
                yield from check(view, path, fields)
    if view.is_defined:
        for section in filter(view.sets, GRAPH_SECTIONS):
            text = "changes or makes an ONNX graph, and source.tensorrt makes a network"
            yield view.problem((section,), text, "remove it", of_key=True)


def _auto_problems(view: ManifestView, path: FieldPath, fields: Fields) -> Problems:
    """Yield precisions and tools that no search can use."""
    if not is_auto(fields):
        return
    backend, precision = describe_backend(fields["backend"]), base_precision(fields)
    choices = backend.auto_precisions(fields)
    section, tool = ("quantize", "modelopt") if precision in QUANTIZED else ("convert", "autocast")
    if precision not in choices and not backend.problem:
        text = f"{backend.title} cannot keep single nodes of {precision} engines in fp32"
        hint = f"use auto-{' or auto-'.join(choices)}" if choices else ""
        yield view.problem((*path, "precision"), text, hint or "name a precision, such as fp16")
    if view.get(section, "tool") == tool:
        text = "ModelOpt chooses the nodes itself, so precision: auto has no effect"
        yield view.problem((section, "tool"), text, "use tool: builtin, or another precision")


def _program_problems(view: ManifestView, path: FieldPath, fields: Fields) -> Problems:
    """Yield what contradicts an engine built from the captured program of PyTorch."""
    backend = describe_backend(fields["backend"])
    built = f"{backend.title} builds from the program of PyTorch"
    if not backend.takes_program:
        return
    if "onnx" in view.map("source"):
        text, hint = f"{built}, and an ONNX source has none", "use another backend here"
        yield view.problem((*path, "backend"), text, hint)
    elif view.list("surgery"):
        text = f"{built}, which surgery on the ONNX graph does not change"
        hint = "change the network instead, or put this engine into a model without surgery"
        yield view.problem((*path, "backend"), text, hint)


def _definition_problems(view: ManifestView, path: FieldPath, fields: Fields) -> Problems:
    """Yield what contradicts an engine of a network defined by hand."""
    backend = describe_backend(fields["backend"])
    if not view.is_defined or backend.problem:
        return
    if not backend.takes_definition:
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
    names = [declared for declared, _ in toolchains.items()] if toolchains else []
    if name is None or toolchains is None or name.value in (None, *names):
        return
    hint = suggest(str(name.value), names, what="toolchains")
    hint = hint or "declare it in configs/project.yaml"
    yield name.error(f"unknown toolchain {show_value(name.value)}", hint)


def profile_problems(view: ManifestView) -> Problems:
    """Yield the problems of the explicit profiles of all engines."""
    inputs = shapes_after_surgery(view)
    for path, profile in view.maps("engines", ..., "profiles", ...):
        for name, ranges in profile.items():
            if name not in inputs:
                hint = suggest(name, inputs, what="inputs")
                yield view.problem((*path, name), f'unknown input "{name}"', hint, of_key=True)
            elif "values" not in ranges:
                yield from _range_problems(view, (*path, name), ranges, inputs[name])
            elif len(inputs[name]) > 1 or any(isinstance(size, str) for size in inputs[name]):
                text = "a range of values needs an input of fixed shape with at most one dimension"
                hint = "give min, opt and max of its shape instead"
                yield view.problem((*path, name, "values"), text, hint, of_key=True)
            else:
                anything: Shape = [None] * (inputs[name] or [1])[0]
                place = (*path, name, "values")
                yield from _range_problems(view, place, ranges["values"], anything)
        for name, shape in inputs.items():
            if name not in profile and any(isinstance(size, str) for size in shape):
                text = f'the profile has no range for the dynamic input "{name}"'
                yield view.problem(path, text, f"add {name}: {{min: […], opt: […], max: […]}}")


def _range_problems(view: ManifestView, path: FieldPath, ranges: Fields, shape: Shape) -> Problems:
    for point in _POINTS:
        if len(ranges[point]) != len(shape):
            text = f"expected {len(shape)} numbers, found {len(ranges[point])}"
            yield view.problem((*path, point), text, "one per dimension, or per element of values")
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
