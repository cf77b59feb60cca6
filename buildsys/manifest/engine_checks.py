"""Checks of engines: their fields, precisions, sources, benchmarks and toolchains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from buildsys.manifest.backend_choices import base_precision, is_auto
from buildsys.manifest.problem import Problems, show_value, suggest
from buildsys.manifest.schema.base import QUANTIZED
from buildsys.manifest.value_tree import FieldPath, ValueNode
from buildsys.manifest.view import REFUSED, ManifestView
from buildsys.stages.table import GRAPH_SECTIONS
from buildsys.system.backend_registry import (
    BackendDescription,
    BrokenBackendError,
    describe_backend,
    find_package,
    import_backend,
)
from buildsys.system.toolchains import override_variable


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
    for path, fields, _ in usable_engines(view):
        with suppress(BrokenBackendError):  # its engines are unavailable
            options = import_backend(fields["backend"], "options")
            if check := getattr(options, "problems", None):
                yield from check(view, path, fields)


def auto_problems(view: ManifestView) -> Problems:
    """Yield precisions that no search can complete, and choices that it makes itself."""
    sections = {}
    for path, fields, backend in usable_engines(view):
        if not is_auto(fields):
            continue
        choices, precision = backend.auto_precisions(fields), base_precision(fields)
        if not choices and not backend.problem:
            text = f"{backend.title} cannot keep single nodes in fp32"
            yield view.problem((*path, "precision"), text, "name a precision, such as fp16")
        elif precision not in choices:
            text = f"{backend.title} cannot keep single nodes of {precision} engines in fp32"
            hint = f"use auto-{' or auto-'.join(choices)}"
            yield view.problem((*path, "precision"), text, hint)
        elif fields.get("layer_precisions"):
            hint = f"remove it, or set precision: {precision}"
            text = "the search chooses the layers in fp32"
            yield view.problem((*path, "layer_precisions"), text, hint, of_key=True)
        elif fields.get("quantization") == "implicit":
            text = "a search cannot foresee the ranges of a builder's own calibration"
            yield view.problem((*path, "quantization"), text, "remove it, or set explicit")
        is_quantized = precision in QUANTIZED
        sections["quantize" if is_quantized else "convert"] = (
            "modelopt" if is_quantized else "autocast"
        )
    for section, tool in sections.items():
        if view.get(section, "tool") == tool:
            text = "ModelOpt chooses the nodes itself, so precision: auto has no effect"
            yield view.problem((section, "tool"), text, "use tool: builtin, or another precision")


def program_problems(view: ManifestView) -> Problems:
    """Yield what contradicts engines built from the captured program of PyTorch."""
    engines = [engine for engine in usable_engines(view) if engine.backend.takes_program]
    for path, _, backend in engines:
        built = f"{backend.title} builds from the program of PyTorch"
        if "onnx" in view.map("source"):
            text, hint = f"{built}, and an ONNX source has none", "use another backend here"
            yield view.problem((*path, "backend"), text, hint)
        elif view.list("surgery"):
            text = f"{built}, which surgery on the ONNX graph does not change"
            hint = "change the network instead, or put this engine into a model without surgery"
            yield view.problem((*path, "backend"), text, hint)
    if not engines or len(engines) < len(view.list("engines")):
        return
    for section in ("convert", "quantize"):
        for field, value in view.map(section).items():
            if view.is_own(section, field) and value not in (None, REFUSED):
                text = "changes the ONNX graph, and no engine of this model is built from it"
                yield view.problem((section, field), text, "remove it", of_key=True)


def definition_problems(view: ManifestView) -> Problems:
    """Yield what a network defined by hand, ``source: {tensorrt: …}``, does not have."""
    if not view.is_defined:
        return
    for section in GRAPH_SECTIONS:
        if view.get(section) not in (None, REFUSED, {}, []) and view.is_own(section):
            text = "changes or makes an ONNX graph, and the network of source.tensorrt is none"
            yield view.problem((section,), text, "remove it", of_key=True)
    file = view.get("source", "weights", "file")
    if isinstance(file, str) and not file.endswith(".npz"):
        text = f"the weights of a network defined by hand are an .npz file, not {file}"
        yield view.problem(("source", "weights", "file"), text, "save them with numpy.savez")
    for path, fields, backend in usable_engines(view):
        if not backend.takes_definition:
            if not backend.problem:
                # an engine preset is named in this manifest, but has its backend elsewhere
                field = "backend" if view.is_own(*path, "backend") else "name"
                text = f"{backend.title} cannot build a network defined with TensorRT's API"
                hint = "use backend: tensorrt, or make the reference the source of another model"
                yield view.problem((*path, field), text, hint)
            continue
        if is_auto(fields):
            text = f"{show_value(fields['precision'])} searches nodes of an ONNX graph, and the"
            text += " network of source.tensorrt is none"
            hint = "name a precision such as fp16, and its exceptions in layer_precisions"
            yield view.problem((*path, "precision"), text, hint)
        if fields.get("quantization") == "implicit":
            text = "the quantize layers of a network defined by hand decide what is int8"
            hint = "add them in the function of source.tensorrt, and remove quantization"
            yield view.problem((*path, "quantization"), text, hint)


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
