"""Checks between the sections of a manifest, and of engines."""

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from types import EllipsisType
from typing import Any

from buildsys.manifest.backend_choices import base_precision, is_auto
from buildsys.manifest.problem import Problems, show_value, suggest
from buildsys.manifest.shape_cases import image_ports, images_of
from buildsys.manifest.value_ranges import data_problem
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView, RefusedError, shapes_after_surgery
from buildsys.stages.table import GRAPH_SECTIONS, STAGES
from buildsys.system.backend_registry import BrokenBackendError, describe_backend, import_backend

_POINTS = ("min", "opt", "max")
_TENSORS: tuple[tuple[str | EllipsisType, ...], ...] = (
    ("inputs",), ("outputs",), ("surgery", ..., "inputs"), ("surgery", ..., "cut", "inputs"),
)  # fmt: skip

_OUTSIDE_THE_KEY = {  # kind of source -> arguments that load other weights or code
    "timm": ("pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay"),
    "transformers": (
        "state_dict",
        "trust_remote_code",
        "code_revision",
        "gguf_file",
        "adapter_kwargs",
    ),
}


def check_model(view: ManifestView) -> Problems:
    """Yield the problems between the fields of a merged model."""
    checks = [_source, _dims, _tensors, _call, _comparisons, _profiles, _engines]
    rooms = (stage.package for stage in STAGES if stage.has_checks)
    checks += [import_module(f"{room}.checks").problems for room in rooms]
    for check in checks:
        with suppress(RefusedError):
            yield from check(view)


def _source(view: ManifestView) -> Problems:
    place = ("source", "reference") if view.is_defined else ("source",)
    source = view.map(*place)
    for kind, options in _OUTSIDE_THE_KEY.items():
        for option in source.get("kwargs", {}) if kind in source else ():
            if option in options:
                text = f"{option} loads what the key does not have"
                hint = f"name a file under {'.'.join(map(str, place))}.weights"
                yield view.problem((*place, "kwargs", option), text, hint, of_key=True)
    if "exported_program" in source and source.get("trusted") is not True:
        text = f"torch can run code of {source['exported_program']} when it loads the file"
        hint = "if you trust its author, write trusted: true beside it"
        yield view.problem((*place, "exported_program"), text, hint, of_key=True)


def _dims(view: ManifestView) -> Problems:
    declared = view.map("dims")
    undeclared: set[str] = set()  # a misspelled name is reported where it is first used
    shapes = [(*tensors, ..., "shape", ...) for tensors in _TENSORS]
    for shape in (*shapes, ("inputs", ..., "preprocess", "size", ...)):
        for path, size in view.find(*shape):
            if isinstance(size, str) and size not in {*declared, *undeclared}:
                undeclared.add(size)
                close = suggest(size, declared, what="declared")
                hint = close or f"add dims: {{{size}: {{min: …, opt: …, max: …}}}}"
                yield view.problem(path, f'dimension "{size}" is not declared in dims', hint)


def _tensors(view: ManifestView) -> Problems:
    keywords: list[str] = []
    for (_, name), tensor in view.maps("inputs", ...):
        if (keyword := tensor.get("keyword")) in keywords:
            text = f'another input has the keyword "{keyword}"'
            yield view.problem(("inputs", name, "keyword"), text, "remove one of them")
        keywords += [keyword] if keyword else []
    for tensors in _TENSORS[::2]:
        for path, tensor in view.maps(*tensors, ...):
            if problem := data_problem(tensor.get("dtype") or "float32", tensor.get("data")):
                field, text, hint = problem
                yield view.problem((*path, *field), text, hint)
    for name in view.map("outputs"):
        if name in view.map("inputs"):
            text = f'an input is already named "{name}"'
            yield view.problem(("outputs", name), text, "rename one of them", of_key=True)


def _call(view: ManifestView) -> Problems:
    inputs = view.map("inputs")
    for path, name in _named_inputs(("call",), view.map("call")):
        if name not in inputs:
            hint = suggest(name, inputs, what="inputs")
            if not hint.startswith("did you mean"):
                hint += f"; a string is {{text: {name}}}"
            yield view.problem(path, f'no input is named "{name}"', hint)


def _named_inputs(path: FieldPath, value: Any) -> Iterator[tuple[FieldPath, str]]:
    """Yield places and names of inputs in the arguments of a call."""
    if isinstance(value, str):
        yield path, value
    if isinstance(value, list) or (isinstance(value, dict) and value.keys() != {"text"}):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for step, member in members:
            yield from _named_inputs((*path, step), member)


def _comparisons(view: ManifestView) -> Problems:
    """Yield companions of boxes that are not outputs: they would not be compared."""
    outputs = view.map("outputs")
    for path, policy in view.maps("outputs", ..., "compare"):
        companions: dict[FieldPath, Any]
        companions = {(f"{role}s",): policy.get(f"{role}s") for role in ("label", "score")}
        companions |= {("rows", n): name for n, name in enumerate(policy.get("rows", ()))}
        for place, name in companions.items():
            if name is not None and name not in outputs:
                hint = suggest(name, outputs, what="outputs")
                yield view.problem((*path, *place), f'no output is named "{name}"', hint)


def _engines(view: ManifestView) -> Problems:
    """Yield duplicate names, and contradictions between the fields of an engine."""
    names: set[str] = set()
    for path, fields in view.maps("engines", ...):
        if fields["name"] in names:
            text = f'two engines of this model are named "{fields["name"]}"'
            yield view.problem((*path, "name"), text, "give one of them another name: …")
        names.add(fields["name"])
        with suppress(RefusedError, BrokenBackendError):  # a broken backend's are unavailable
            yield from _engine(view, path, fields)
    for section in filter(view.sets, GRAPH_SECTIONS if view.is_defined else ()):
        text = "changes or makes an ONNX graph, and source.tensorrt makes a network"
        yield view.problem((section,), text, "remove it", of_key=True)


def _engine(view: ManifestView, path: FieldPath, fields: dict[str, Any]) -> Problems:
    backend, precision = describe_backend(fields["backend"]), base_precision(fields)
    options = import_backend(fields["backend"], "options")
    if check := getattr(options, "problems", None):
        yield from check(view, path, fields)
    if precision == "int4" and fields["backend"] != "onnxruntime":
        hint = "use backend: onnxruntime, or another precision"
        text = "int4 engines are built with ONNX Runtime only"
        yield view.problem((*path, "precision"), text, hint)
    choices = backend.auto_precisions(fields)
    if is_auto(fields) and precision not in choices:
        text = f"{backend.title} cannot keep single nodes of {precision} engines in fp32"
        hint = f"use auto-{' or auto-'.join(choices)}" if choices else ""
        yield view.problem((*path, "precision"), text, hint or "name a precision, such as fp16")
    # an engine preset is named in this manifest, but has its backend elsewhere
    named = (*path, "backend" if view.is_own(*path, "backend") else "name")
    built = f"{backend.title} builds from the program of PyTorch"
    if backend.takes_program and "onnx" in view.map("source"):
        text, hint = f"{built}, and an ONNX source has none", "use another backend here"
        yield view.problem(named, text, hint)
    elif backend.takes_program and view.list("surgery"):
        text = f"{built}, which surgery on the ONNX graph does not change"
        hint = "change the network instead, or put this engine into a model without surgery"
        yield view.problem(named, text, hint)
    if view.is_defined and not backend.takes_definition:
        text = f"{backend.title} cannot build a network defined with TensorRT's API"
        hint = "use backend: tensorrt, or make the reference the source of another model"
        yield view.problem(named, text, hint)
    elif view.is_defined and (is_auto(fields) or fields.get("quantization") == "implicit"):
        field = "precision" if is_auto(fields) else "quantization"
        text = f"{show_value(fields[field])} needs an ONNX graph, and there is none"
        hint = "name a precision such as fp16, or add quantizers in the function of source.tensorrt"
        yield view.problem((*path, field), text, hint)


def _profiles(view: ManifestView) -> Problems:
    """Yield the problems of the explicit profiles of all engines."""
    images = image_ports(images_of({"inputs": view.get("inputs")}))
    inputs = shapes_after_surgery(view) | {n: port["shape"] for n, port in images.items()}
    for path, profile in view.maps("engines", ..., "profiles", ...):
        for name, ranges in profile.items():
            place, shape = (*path, name), inputs.get(name)
            if shape is None:
                hint = suggest(name, inputs, what="inputs")
                yield view.problem(place, f'unknown input "{name}"', hint, of_key=True)
                continue
            if "values" in ranges:
                place, ranges = (*place, "values"), ranges["values"]
                if len(shape) > 1 or any(isinstance(size, str) for size in shape):
                    text = (
                        "a range of values needs an input of fixed shape, of one dimension at most"
                    )
                    hint = "give min, opt and max of its shape instead"
                    yield view.problem(place, text, hint, of_key=True)
                    continue
                shape = [None] * (shape or [1])[0]
            yield from _ranges(view, place, ranges, shape)
        for name, shape in inputs.items():
            if name not in profile and any(isinstance(size, str) for size in shape):
                text = f'the profile has no range for the dynamic input "{name}"'
                yield view.problem(path, text, f"add {name}: {{min: […], opt: […], max: […]}}")


def _ranges(
    view: ManifestView, path: FieldPath, ranges: dict[str, list[int]], shape: list[Any]
) -> Problems:
    for point in _POINTS:
        if len(ranges[point]) != len(shape):
            text = f"expected {len(shape)} numbers, found {len(ranges[point])}"
            yield view.problem((*path, point), text, "one per dimension, or per element of values")
            return
    for axis, size in enumerate(shape):
        low, best, high = chosen = [ranges[point][axis] for point in _POINTS]
        span = view.dim_range(size) if isinstance(size, str) else size and (size, size, 1)
        text = f"min {low}, opt {best}, max {high} of axis {axis}"
        if not low <= best <= high:
            yield view.problem(path, f"{text} are not ascending", "reorder them")
        elif span and any(not span[0] <= value <= span[1] or value % span[2] for value in chosen):
            least, most, step = span
            text += f" do not fit {size} ({least} to {most}{f' in steps of {step}' * (step > 1)})"
            hint = "widen dims or narrow the profile: outputs are verified within dims only"
            yield view.problem(path, text, hint)
