"""Checks of calibration and quantization: data, algorithms and unsupported combinations."""

from __future__ import annotations

from typing import Any

from buildsys.manifest.backend_choices import is_auto
from buildsys.manifest.engine_checks import int8_layers, precision_of
from buildsys.manifest.problem import Problems, suggest
from buildsys.manifest.schema.base import QUANTIZED
from buildsys.manifest.value_ranges import data_problem
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import REFUSED, ManifestView, shapes_after_surgery
from buildsys.stages.calibrate.fields import DEFAULT_PERCENTILE

_TENSORRT_ALGORITHMS = ("entropy", "minmax")


def problems(view: ManifestView) -> Problems:
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
        elif problem := data_problem(view.get("inputs", name, "dtype") or "float32", values):
            field, text, hint = problem
            yield view.problem((*path, *field), text, hint)
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
