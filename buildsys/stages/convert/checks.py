"""Checks of calibration and quantization: data, algorithms and unsupported combinations."""

from typing import Any

from buildsys.manifest.backend_choices import QUANTIZED, base_precision, int8_layers, is_auto
from buildsys.manifest.problem import Problems, suggest
from buildsys.manifest.value_ranges import data_problem
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView, shapes_after_surgery

_OF_QUANTIZERS = "int8"  # the precision of a network with quantizers
_EXAMPLE = "{images: data/calibration}"


def problems(view: ManifestView) -> Problems:
    """Yield missing data and unsupported combinations of int8 and fp8 engines."""
    if view.get("convert", "tool") == "autocast" and view.get("convert", "exclude"):
        text = "ModelOpt AutoCast chooses the nodes itself"
        yield view.problem(("convert", "exclude"), text, "remove it, or use tool: builtin")
    if view.is_defined:  # it has its own quantizers
        return
    if view.get("quantize", "tool") == "source":
        for path, engine in view.maps("engines", ...):
            yield from _of_quantized_network(view, path, engine)
        return
    for path, engine in view.maps("engines", ...):
        calibrated = engine.get("quantization") == "implicit" and int8_layers(engine)
        is_static = engine.get("quantization") != "dynamic"
        if (base_precision(engine) in QUANTIZED and is_static) or calibrated:
            yield from _calibration_use(view, path, engine)
    if view.get("calibration") is not None:
        yield from _calibration(view, shapes_after_surgery(view))


def _of_quantized_network(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    """Yield conversions of a network with its own quantizers, which engines take as they are."""
    precision = str(engine.get("precision", "fp32"))
    if precision not in ("fp32", _OF_QUANTIZERS):
        text = f"the network has its own quantizers, which cannot be converted to {precision}"
        hint = "use precision: int8, or the network before its quantization"
        yield view.problem(view.place_of(path, "precision"), text, hint)
    if (chosen := engine.get("quantization")) in ("dynamic", "implicit"):
        text = f"the network has its own quantizers, and {chosen} ones would be others"
        yield view.problem(view.place_of(path, "quantization"), text, "remove it", of_key=True)


def _calibration_use(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    precision, tool = base_precision(engine), view.get("quantize", "tool")
    algorithm = view.get("calibration", "algorithm")
    if view.get("calibration") is None:
        field, kind = (
            ("precision", precision)
            if precision in QUANTIZED
            else ("quantization", "implicitly quantized")
        )
        what = f"the {kind} engine {engine.get('name', '')}".rstrip()
        text = f"{what} needs calibration data, but this model has no section calibration"
        hint = f"add calibration: {{data: {{{next(iter(view.map('inputs')), 'x')}: {_EXAMPLE}}}}}"
        if precision == _OF_QUANTIZERS:
            hint += ", or quantize: {tool: source} if the network has its own quantizers"
        yield view.problem(view.place_of(path, field), text, hint)
    chosen = engine.get("quantization", "auto")
    is_weak = chosen == "auto" and engine.get("typing") == "weak" and not is_auto(engine)
    calibrates_itself = chosen == "implicit" or is_weak
    if algorithm == "percentile" and (calibrates_itself or tool == "modelopt"):
        text = "TensorRT and ModelOpt calibrate with entropy or minmax only"
        hint = "use one of these, or an explicit quantization with another quantize.tool"
        yield view.problem(("calibration", "algorithm"), text, hint)


def _calibration(view: ManifestView, shapes: dict[str, list[Any]]) -> Problems:
    data, size = view.map("calibration", "data"), view.get("calibration", "batch_size")
    for name, values in data.items():
        path = ("calibration", "data", name)
        if name not in shapes:
            hint = suggest(name, shapes, what="inputs")
            yield view.problem(path, f'unknown input "{name}"', hint, of_key=True)
        elif problem := data_problem(view.get("inputs", name, "dtype") or "float32", values):
            field, text, hint = problem
            yield view.problem((*path, *field[1:]), text, hint)
    for name, shape in shapes.items():
        if name not in data and view.get("inputs", name, "data") is None:
            hint = f"add data: {{{name}: {_EXAMPLE}}}"
            text = f'input "{name}" has no calibration data'
            yield view.problem(("calibration",), text, hint)
        first = shape[0] if shape else None
        span = view.dim_range(first) if isinstance(first, str) else (first, first, 1)
        if size and span and not (span[0] is not None and span[0] <= size <= span[1]):
            text = f'{size} does not fit the first dimension of input "{name}", {first}'
            hint = "choose a size in its range in dims, or remove it"
            yield view.problem(("calibration", "batch_size"), text, hint)
